"""Three layouts of rows, and tiles found by two ballots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_sums import TileSums

from megamoe_dsl.kernel_cases.gather import BlockedRows, ExpertRows, PackedRows
from megamoe_dsl.schedule.tile_sums import MOST_EXPERTS, MOST_TILES

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=130).map(tuple)
BLOCKS = st.sampled_from([1, 8, 64, 128])


def all_rows(layout: ExpertRows) -> list[int]:
    return [row for expert in range(len(layout.counts)) for row in layout.rows(expert)]


@given(COUNTS)
def test_packed_rows_are_every_row_once(counts: tuple[int, ...]) -> None:
    layout = PackedRows(counts)
    assert all_rows(layout) == list(range(layout.num_rows)) and layout.num_rows == sum(counts)


@given(COUNTS, BLOCKS)
def test_blocks_belong_to_one_expert(counts: tuple[int, ...], block: int) -> None:
    layout = BlockedRows(counts, block)
    owners: dict[int, set[int]] = {}
    for expert in range(len(counts)):
        for row in layout.rows(expert):
            owners.setdefault(row // block, set()).add(expert)
    assert all(len(experts) == 1 for experts in owners.values())
    assert len(set(all_rows(layout))) == sum(counts) == layout.num_rows - layout.padding
    assert len(owners) * block == layout.num_rows
    assert 0 <= layout.padding <= (block - 1) * sum(count > 0 for count in counts)


def test_worst_case_of_the_article() -> None:
    """256 experts with blocks of 256 pad up to 65,536 rows."""
    counts = (1,) * 256
    assert BlockedRows(counts, 256).padding == 256 * 255
    assert BlockedRows((257,) * 256, 256).padding == 256 * 255
    assert BlockedRows((0,) * 5, 128).num_rows == 0


def test_bad_layouts_are_refused() -> None:
    with pytest.raises(ValueError, match="1025 experts, must be 1 to 1024"):
        PackedRows((1,) * 1025)
    with pytest.raises(ValueError, match="-1 rows, must be 0 or more"):
        BlockedRows((3, -1), 8)


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
