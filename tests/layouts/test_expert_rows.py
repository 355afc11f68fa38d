"""Three layouts of rows, and tiles found by two ballots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_sums import MOST_EXPERTS, MOST_TILES, TileSums

from megamoe_dsl.kernel_cases.gather import sorted_rows

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=130).map(tuple)
BLOCKS = st.sampled_from([1, 8, 64, 128])


@given(COUNTS, BLOCKS)
def test_blocks_belong_to_one_expert(counts: tuple[int, ...], block: int) -> None:
    rows, num_rows = sorted_rows(counts, block)
    owners: dict[int, set[int]] = {}
    for row, expert in zip(rows.tolist(), [expert for expert, count in enumerate(counts) for _ in range(count)], strict=True):
        owners.setdefault(row // block, set()).add(expert)
    assert all(len(experts) == 1 for experts in owners.values())
    assert len(set(rows.tolist())) == sum(counts) and len(owners) * block == num_rows
    assert 0 <= num_rows - sum(counts) <= (block - 1) * sum(count > 0 for count in counts)


def test_worst_case_of_the_article() -> None:
    """256 experts with blocks of 256 pad up to 65,536 rows."""
    for count in (1, 257):
        assert sorted_rows((count,) * 256, 256)[1] - count * 256 == 256 * 255


@settings(max_examples=60)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=MOST_EXPERTS), BLOCKS.filter(lambda block: block > 1), st.integers(1, 3))
def test_two_ballots_find_every_tile(counts: list[int], block: int, columns: int) -> None:
    sums = TileSums.of(counts, block, columns)
    found = [sums.find(tile) for tile in range(sums.num_tiles)]
    assert found == [(expert, i) for expert, count in enumerate(counts) for i in range(-(-count // block) * columns)]
    assert sums.find(sums.num_tiles + 2) == (len(counts), 2)


def test_limits_of_tile_sums() -> None:
    assert TileSums.of([64] * 1024, 64).find(1023) == (1023, 0)
    assert TileSums.of([1] * 512, 64).num_bytes == 2 * (512 + 16)
    with pytest.raises(ValueError, match="1025 experts"):
        TileSums.of([1] * 1025, 64)
    with pytest.raises(ValueError, match=f"65536 tiles, must be at most {MOST_TILES}"):
        TileSums.of([1 << 16], 1)
