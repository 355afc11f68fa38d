"""Shadow memory: records of pages that become finer keep what was recorded, and name the same bytes."""

import random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megamoe_dsl.sim import access_record
from megamoe_dsl.sim.access_record import (
    AGENT_MASK,
    ALIKE,
    ASYNC_BIT,
    CODE_SHIFT,
    FULL,
    LAST,
    LINE_MASK,
    SEVERAL,
    alike,
    bits_of,
    codes_of,
    lane_codes,
    lanes_of,
    mask_of,
    members,
    pack,
    unordered,
    unpack,
)
from megamoe_dsl.sim.chunks import CHUNK, Chunks
from megamoe_dsl.sim.shadow import Index, Shadow

SIZE = 5 * 1024 + 48
GAP = 10_000  # the name of a byte is its offset minus this


def locations(shadow: Shadow, index: Index) -> list[int]:
    whole = np.arange(index.start, index.stop) if isinstance(index, slice) else index
    return [GAP + int(shadow.where(at).removeprefix("m+")) for at in whole.tolist()]


def draw(rng: random.Random) -> tuple[object, int, list[int]]:
    """An access as the detector gets it, and its bytes."""
    kind = rng.choice(("lanes", "lanes", "slice", "chunks"))
    if kind == "slice":
        low = rng.randrange(SIZE - 1)
        end = rng.randrange(low + 1, min(SIZE, low + 3000) + 1)
        if rng.random() < 0.6:
            low, end = low // 16 * 16, -(-end // 16) * 16
        return slice(low, end), 1, list(range(low, end))
    if kind == "chunks":
        starts = np.array(rng.sample(range(SIZE // CHUNK), rng.choice((1, 8, 64)))) * CHUNK
        if rng.random() < 0.5:
            starts = starts[0] // CHUNK * CHUNK + np.arange(min(len(starts), (SIZE - int(starts[0])) // CHUNK)) * CHUNK
        return Chunks(starts), CHUNK, [int(s) + k for s in starts for k in range(CHUNK)]
    size = rng.choice((1, 2, 4, 8, 16, 16, 32))
    starts = np.array([rng.randrange(SIZE // size) * size for _ in range(rng.choice((1, 4, 32)))])
    return starts, size, [int(s) + k for s in starts for k in range(size)]


@pytest.mark.parametrize("seed", range(20))
def test_records_follow_their_bytes_through_refinement(seed: int) -> None:
    rng, shadow = random.Random(seed), Shadow(SIZE, CHUNK, "m", "m", GAP, 0)
    written = np.zeros(SIZE, np.int64)
    for number in range(1, 80):
        where, size, touched = draw(rng)
        index = shadow.index(where, size)  # type: ignore[arg-type]
        places = locations(shadow, index)
        assert set(places) <= set(touched) and touched[0] in places
        if not isinstance(where, slice | Chunks):
            per_access = len(places) // len(where)  # type: ignore[arg-type]
            assert places[::per_access] == where.tolist()  # type: ignore[attr-defined]
        assert shadow.write[index].tolist() == written[places].tolist()
        shadow.write[index] = number
        written[touched] = number


def test_what_else_is_recorded_follows_too() -> None:
    shadow = Shadow(SIZE, CHUNK, "m", "m", 0, 0)
    first, second = shadow.index(np.array([1024]), 16), shadow.index(np.array([1040]), 16)
    assert not isinstance(first, slice) and not isinstance(second, slice)
    reader = pack(7, 1, 0, False)
    shadow.concurrent().add(first, np.array([reader]))
    shadow.add_strong(second, 9, writes=True)
    finer = shadow.index(np.array([1024 + 12, 1040 + 4, 1056]), 4)
    assert not isinstance(finer, slice)
    assert shadow.readers is not None
    [(places, records)] = shadow.readers.unknown(finer, np.zeros(16, np.int32))
    assert (places.tolist(), records.tolist()) == ([0], [reader])
    assert shadow.strong_at(finer, before_write=True) == [(finer[1], 9, True)]
    assert shadow.strong_at(finer, before_write=True) == []
    assert shadow.readers.unknown(finer, np.zeros(16, np.int32)) == []


@given(st.integers(0, AGENT_MASK), st.integers(0, (1 << 22) - 1), st.integers(0, LINE_MASK), st.booleans(), st.integers(0, LAST))
def test_a_record_says_what_it_was_made_of(agent: int, clock: int, line: int, asynchronous: bool, code: int) -> None:
    record = pack(agent, clock, line, asynchronous, code)
    assert unpack(record) == (agent, code, line, clock) and bool(record & ASYNC_BIT) == asynchronous
    assert lane_codes(np.array([record])).tolist() == [code]
    row = np.full(AGENT_MASK + 1, 1 << 30, np.int32)
    for known in (clock, clock - 1):
        row[agent] = known
        for count in (1, 3, 300):
            bad = unordered(np.array([record] * count), row)
            assert bad is None if known == clock else bad is not None and bad.tolist() == [True] * count
            others = np.array([record, *range(count)])  # of agents that all is known of, but for one
            bad = unordered(others, row)
            wrong = [known < clock, *((one == agent and known < 0) for one in range(count))]
            assert bad is None if not any(wrong) else bad is not None and bad.tolist() == wrong


@given(st.lists(st.integers(1, FULL), min_size=1, max_size=40))
def test_lanes_have_a_code_while_there_are_codes(masks: list[int]) -> None:
    access_record._pattern.cache_clear()
    with patch.object(access_record, "_groups", []):
        for bits in masks:
            lanes, code = lanes_of(bits), alike(bits)
            assert mask_of(list(lanes)) == bits == bits_of(np.array([bits >> i & 1 for i in range(32)], bool))
            assert members(code) == bits or (code == ALIKE and len(set(masks)) > LAST - SEVERAL)
            assert codes_in_place(bits, np.repeat(np.arange(len(lanes)), 2)) == [lane for lane in lanes for _ in range(2)]
            assert codes_in_place(bits, np.zeros(len(lanes), np.int64)) == [code] * len(lanes), "all at one place"
        assert bits_of(None) == FULL == members(ALIKE) == members(SEVERAL) and alike(FULL) == ALIKE
    access_record._pattern.cache_clear()


def codes_in_place(bits: int, index: np.ndarray) -> list[int]:
    return (np.broadcast_to(codes_of(bits, index), len(index)) >> CODE_SHIFT).tolist()
