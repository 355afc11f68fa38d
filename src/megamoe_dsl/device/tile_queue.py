"""Tiles handed out at run time: one warp of a cluster publishes them in the shared memory of its CTAs, and all other warps read them there.

A tile is four words that only the kernel understands; the first is never negative.  A kernel's SMEM plan is a `Region` with these fields,
each with a place of the queue as its first index:

| field                   | what it holds |
|---|---|
| work_tiles              | u32 [places, 4] |
| work_tile_full_barrier  | mbarrier, 1 arrival: the tile is there |
| work_tile_empty_barrier | mbarrier of the first CTA, one arrival per lane of every warp of the cluster that reads: all have read it |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..layouts.region import Region
from .cluster import in_cta, store_async_v4
from .mbarrier import arrive, arrive_expect_cluster, release, release_cluster, wait
from .memory import atomic_add_u32, load_shared_v4, store_shared_v4
from .ring import Ring
from .warp import shuffle, sync_warp

TILE_BYTES = 16


@dataclass(frozen=True)
class TileQueue:
    """The place of the next tile; `plan` is the CTA's shared memory, `smem` its address, `cluster` the CTAs that get tiles together.

    A warp that works on every `every`-th tile only, from place `first` on, has a ring of so many times fewer places.
    """

    plan: cutlass.Constexpr[Region]
    cluster: cutlass.Constexpr[int]
    smem: Int32
    ring: Ring
    every: cutlass.Constexpr[int] = 1
    first: Any = 0

    @staticmethod
    def start(plan: Region, smem: Any, places: int, cluster: int = 1) -> TileQueue:
        """The first of so many places."""
        return TileQueue(plan, cluster, smem, Ring.start(places))

    def alternate(self, first: Any, every: int) -> TileQueue:
        """For a warp that works on every `every`-th tile, which is a divisor of the places, from `first` on."""
        return TileQueue(self.plan, self.cluster, self.smem, Ring.start(self.ring.depth // every), every, first)

    def next(self) -> TileQueue:
        return replace(self, ring=self.ring.next())

    def shared(self, name: str) -> Any:
        """Shared address of a field of the plan, in this place."""
        place = self.ring.index if self.every == 1 else self.ring.index * self.every + self.first
        return self.plan.address(self.smem, name, place)

    def wait_empty(self) -> None:
        """The publishing warp: until everyone has read the tile that was here."""
        wait(self.shared("work_tile_empty_barrier"), self.ring.phase ^ 1)


@cute.jit
def fetch_numbers(counter: Int64, count: cutlass.Constexpr[int]):
    """For a whole warp: takes the next `count` numbers, which nobody else gets, and returns the first; `counter` is a u32 in global
    memory."""
    taken = Int32(0)
    if cute.arch.lane_idx() == 0:
        taken = atomic_add_u32(counter, count)
    return shuffle(taken, 0)


@cute.jit
def publish(queue: TileQueue, words: Callable[[int], tuple[Any, ...]]):
    """The publishing warp, of the cluster's first CTA, once the place is empty: the tile `words(cta)` for each CTA of the cluster.

    `words` is called in the branch of a single lane, so that the other lanes compute nothing of it.
    """
    place, full = queue.shared("work_tiles"), queue.shared("work_tile_full_barrier")
    if cute.arch.lane_idx() == 0:
        for cta in cutlass.range_constexpr(queue.cluster):
            if cutlass.const_expr(cta == 0):
                store_shared_v4(place, words(cta))
                arrive(full)
            else:
                tile, theirs = words(cta), in_cta(full, cta)
                arrive_expect_cluster(theirs, TILE_BYTES)
                store_async_v4(in_cta(place, cta), tile, theirs)
    sync_warp()


@cute.jit
def read_tile(queue: TileQueue, used: cutlass.Constexpr[tuple[int, ...]] = (0,)):
    """A warp that works on tiles: the words of its next one, and the place of the one after it.

    used: if they are few, the words that the caller uses, the first among them.  ptxas may load each on its own, and the arrival waits
    for all of them.
    """
    wait(queue.shared("work_tile_full_barrier"), queue.ring.phase)
    words = [Int32(word) for word in load_shared_v4(queue.shared("work_tiles"))]
    # Every lane arrives, after its own read.  Then no order between lanes is needed, and tools that follow single threads
    # (compute-sanitizer) see that the tile is read before it is overwritten.
    empty = queue.shared("work_tile_empty_barrier")
    loaded = words[0]
    for index in cutlass.range_constexpr(1, len(used)):
        loaded = cutlass.max(loaded, words[used[index]])
    if cutlass.const_expr(queue.cluster > 1):
        release_cluster(in_cta(empty, 0), loaded)
    else:
        release(empty, loaded)
    sync_warp()  # wgmma and elections need the warp together
    return words, queue.next()
