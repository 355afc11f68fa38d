"""What the race detector compares: a record of one access, and the rows of a vector clock.

A record is an int64. The clock of who made it is in bits 40-62, lanes in 34-39 (see `lane_codes`), the PTX line in 16-33, the async-proxy
flag in bit 15, and the agent in 0-14.

Row HAPPENED of a clock counts the writes that happened before; rows ASYNC_GLOBAL and ASYNC_SHARED count what a `fence.proxy.async` has
also made visible to the async proxy, in global and in shared memory (PTX ISA, "Memory Consistency Model", "Proxies"). Row READS counts
the reads that happened before: a warp barrier passes on writes, but not another lane's reads (see `lane_order`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HAPPENED, ASYNC_GLOBAL, ASYNC_SHARED, READS = 0, 1, 2, 3
ROWS = 4
EVERY = tuple(range(ROWS))


AGENT_MASK = 0x7FFF
ASYNC_BIT = 0x8000
LINE_SHIFT = 16
LINE_MASK = 0x3FFFF
CLOCK_SHIFT = 40
_SHORT, _FEW = 128, 8  # so many records, of which so many differ: up to here Python is faster than numpy

Records = NDArray[np.int64]


def pack(agent: int, clock: int, line: int, asynchronous: bool) -> int:
    """The record of an access of no lane in particular."""
    return clock << CLOCK_SHIFT | (line & LINE_MASK) << LINE_SHIFT | (ASYNC_BIT if asynchronous else 0) | agent


def unordered(records: Records, row: NDArray[np.int32]) -> NDArray[np.bool_] | None:
    """Which accesses a clock with these entries does not know; None when it knows all.

    What one instruction touches was mostly touched by one instruction before, or by a few, so that few comparisons do for all.
    """
    raw = records.tobytes()
    if raw == raw[:8] * len(records):
        first = int.from_bytes(raw[:8], "little")
        return None if first >> CLOCK_SHIFT <= row.item(first & AGENT_MASK) else np.ones(len(records), np.bool_)
    few = set(records.tolist()) if len(records) <= _SHORT else ()
    if 0 < len(few) <= _FEW and all(one >> CLOCK_SHIFT <= row.item(one & AGENT_MASK) for one in few):
        return None
    bad: NDArray[np.bool_] = (records >> CLOCK_SHIFT) > row.take(records & AGENT_MASK)
    return bad if b"\x01" in bad.tobytes() else None
