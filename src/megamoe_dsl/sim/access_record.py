"""What the race detector compares: a record of one access, and the rows of a vector clock.

A record is an int64: the clock of who made it in bits 40-62, the lanes that have a part in it in 34-39, the PTX line in 16-33, the
async-proxy flag in bit 15, the agent in 0-14. Codes of lanes: 0 to 31 are one lane, ALIKE lanes that all do the same to a location (a
broadcast), SEVERAL lanes that each have a part of it (a stored matrix), and from FIRST_GROUP on lanes of some mask that all do the same.

Row HAPPENED of a clock counts the writes that happened before; rows ASYNC_GLOBAL and ASYNC_SHARED what a `fence.proxy.async` has also made
visible to the async proxy, in global and in shared memory (PTX ISA, "Memory Consistency Model", "Proxies"). Row READS counts the reads that
happened before: a warp barrier passes on writes, but not another lane's reads (see `lane_order`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled
from .lanes import Mask, addresses

HAPPENED, ASYNC_GLOBAL, ASYNC_SHARED, READS = 0, 1, 2, 3
ROWS = 4
EVERY = tuple(range(ROWS))
ASYNC = {"global": ASYNC_GLOBAL, "shared": ASYNC_SHARED}


AGENT_MASK = 0x7FFF
ASYNC_BIT = 0x8000
LINE_SHIFT = 16
LINE_MASK = 0x3FFFF
CLOCK_SHIFT = 40

Records = NDArray[np.int64]


def pack(agent: int, clock: int, line: int, asynchronous: bool, code: int = 0) -> int:
    """The record of an access; `code` says which lanes made it."""
    return code << CODE_SHIFT | clock << CLOCK_SHIFT | (line & LINE_MASK) << LINE_SHIFT | (ASYNC_BIT if asynchronous else 0) | agent


def unpack(record: int) -> tuple[int, int, int, int]:
    """The fields of a record: agent, lane code, PTX line, clock."""
    return record & AGENT_MASK, record >> CODE_SHIFT & LAST, record >> LINE_SHIFT & LINE_MASK, record >> CLOCK_SHIFT


def unordered(records: Records, row: NDArray[np.int32]) -> NDArray[np.bool_] | None:
    """Mask of the accesses that a clock row does not cover; None if it covers all. Equal records are compared once."""
    raw = records.tobytes()
    if raw == raw[:8] * len(records):
        first = int.from_bytes(raw[:8], "little")
        return None if first >> CLOCK_SHIFT <= row.item(first & AGENT_MASK) else np.ones(len(records), np.bool_)
    bad: NDArray[np.bool_] = (records >> CLOCK_SHIFT) > row.take(records & AGENT_MASK)
    return bad if b"\x01" in bad.tobytes() else None


FULL = 0xFFFFFFFF
CODE_SHIFT = 34
ALIKE, SEVERAL, FIRST_GROUP, LAST = 32, 33, 34, 63
CODE_MASK = LAST << CODE_SHIFT


_groups: list[int] = []


def bits_of(mask: Mask) -> int:
    """A mask as an integer; bit i is lane i."""
    return FULL if mask is None else _bits(mask.tobytes())


@lru_cache(maxsize=1 << 16)
def _bits(mask: bytes) -> int:
    return int.from_bytes(np.packbits(np.frombuffer(mask, np.bool_), bitorder="little").tobytes(), "little")


def mask_of(lanes: list[int]) -> int:
    return FULL if len(lanes) == 32 else 1 << lanes[0] if len(lanes) == 1 else sum(1 << lane for lane in lanes)


@lru_cache(maxsize=4096)
def lanes_of(bits: int) -> tuple[int, ...]:
    return tuple(lane for lane in range(32) if bits >> lane & 1)


def lane_codes(records: Records) -> Records:
    return records >> CODE_SHIFT & LAST


def members(code: int) -> int:
    """The lanes of a code, as a mask."""
    if code < ALIKE:
        return 1 << code
    return _groups[code - FIRST_GROUP] if FIRST_GROUP <= code < FIRST_GROUP + len(_groups) else FULL


def alike(bits: int) -> int:
    """The code of lanes that all do the same. Masks beyond the thirtieth count as all lanes."""
    if bits == FULL:
        return ALIKE
    if not bits & (bits - 1):
        return bits.bit_length() - 1
    if bits not in _groups:
        if FIRST_GROUP + len(_groups) > LAST:
            return ALIKE
        _groups.append(bits)
    return FIRST_GROUP + _groups.index(bits)


def codes_of(bits: int, index: NDArray[np.int64]) -> NDArray[np.int64] | int:
    """Lane codes, shifted into their field, of the locations that lanes `bits` touch: lane by lane, equally many locations each."""
    if not bits & (bits - 1):
        return bits.bit_length() - 1 << CODE_SHIFT
    return _pattern(bits, addresses(index, -index.item(0)).tobytes())


@lru_cache(maxsize=1 << 14)
def _pattern(bits: int, steps: bytes) -> NDArray[np.int64]:
    index, lanes = np.frombuffer(steps, np.int64), np.array(lanes_of(bits))
    if len(index) % len(lanes):
        return np.full(len(index), SEVERAL << CODE_SHIFT)
    codes = np.repeat(lanes, len(index) // len(lanes))
    _, first, inverse = np.unique(index, return_index=True, return_inverse=True)
    shared = np.zeros(len(first), np.bool_)
    np.logical_or.at(shared, inverse, codes != codes[first][inverse])
    return np.where(shared[inverse], alike(bits), codes) << CODE_SHIFT


def code_of(where: object, parts: bool = False) -> int | None:
    """The code of a warp's access: ALIKE for one slice, SEVERAL if each lane has a part; None if each lane has its own locations."""
    return SEVERAL if parts else ALIKE if isinstance(where, slice) else None


_FIELDS = {
    "AGENT_MASK": AGENT_MASK, "ASYNC_BIT": ASYNC_BIT, "CLOCK_SHIFT": CLOCK_SHIFT, "HAPPENED": HAPPENED, "READS": READS,
    "CODE_MASK": CODE_MASK, "CODE_SHIFT": CODE_SHIFT, "ALIKE": ALIKE,
}  # fmt: skip
QUICK: Any = compiled("quick_check", _FIELDS)
"""The functions of `quick_check.c`: what most accesses are, nothing to report and a record to update."""
