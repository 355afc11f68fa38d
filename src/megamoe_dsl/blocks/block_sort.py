"""A stable counting sort by one CTA: every warp has items that follow one another, counts them by key, and when the counts of all warps
have become the places of their first items, gives each item its place.

Counters are words in shared memory, a row of keys for each warp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..device.memory import load_shared_u32, reduce_add_shared, store_shared_u32
from ..device.warp import inclusive_sum, lanes_below, match_lanes, popc, sync_warp

LANES = 32
NO_KEY = -1


@cute.jit
def clear_counts(counts: Int32, words: cutlass.Constexpr[int], thread: Int32, threads: cutlass.Constexpr[int]):
    for index in cutlass.range(thread, words, threads, unroll=1):
        store_shared_u32(counts + index * 4, 0)


@cute.jit
def count(counts: Int32, key: Int32):
    """An item of each lane that has a key, in its warp's row."""
    if key != NO_KEY:
        reduce_add_shared(counts + key * 4, 1)


@cute.jit
def find_place(counts: Int32, key: Int32, then: cutlass.Constexpr[Callable[[Int32], None]]):
    """The place of each lane's item, or `NO_KEY`, in the order of lanes, the lanes with the same key, and how many of them come before it.
    `counts` is the warp's row; `then` gets the place of an item, if any."""
    same = match_lanes(key)
    before, place = popc(same & lanes_below()), Int32(NO_KEY)
    if key != NO_KEY:
        place = load_shared_u32(counts + key * 4) + before
        then(place)
    return place, same, before


@cute.jit
def pass_places(counts: Int32, key: Int32, place: Int32, same: Int32, before: Int32):
    """The row goes past the items that have found their places."""
    sync_warp()
    if (key != NO_KEY) & (before == 0):
        store_shared_u32(counts + key * 4, place + popc(same))
    sync_warp()


def count_of_key(counter: Any, stride: int, warps: int) -> Any:
    """Items of all warps; `counter` is the first warp's, `stride` bytes before the next one's."""
    return sum((load_shared_u32(counter + one * stride) for one in range(warps)), Int32(0))


@cute.jit
def counts_to_places(counter: Int32, stride: cutlass.Constexpr[int], warps: cutlass.Constexpr[int], first: Int32):
    """A key's counts become the places of its warps' first items, `first` being that of the first of all."""
    for one in cutlass.range_constexpr(warps):
        place = counter + one * stride
        number = load_shared_u32(place)
        store_shared_u32(place, first)
        first = first + number


@cute.jit
def sum_of_block(value: Int32, totals: cutlass.Constexpr[Callable[[Any], Any]], thread: Int32, warps: cutlass.Constexpr[int]):
    """The sum of `value` over this thread and all before it; `totals`: address of a word of each warp, free again after the CTA has met."""
    warp, lane, end = thread // LANES, thread % LANES, inclusive_sum(value)
    if lane == LANES - 1:
        store_shared_u32(totals(warp), end)
    cute.arch.sync_threads()
    for one in cutlass.range_constexpr(warps):
        of_warp = load_shared_u32(totals(one))
        end = end + cutlass.select_(warp > one, of_warp, Int32(0))
    return end
