"""Rings of places in shared memory: a position, a stage of operands, the queue of tiles.

Blocks take a `Stage` or a `TileQueue` and no kernel's context.  Of the plan of shared memory, a `Region`, they expect these fields, each
with the stage, or the place of the queue, as its first index:

| field         | what it holds |
|---|---|
| tokens, weights | rows of the activations and of the weights, K-major, swizzled over a row's width |
| sfa, sfb      | scales of the tokens and of the weights that come with the stage |
| full_barrier  | mbarrier: the operands are there; loaders arrive and expect bytes |
| empty_barrier | mbarrier: everyone has read them |
| work_tiles              | u32 [places, 4]: a tile, four words that only the kernel understands; the first is never negative |
| work_tile_full_barrier  | mbarrier, 1 arrival: the tile is there |
| work_tile_empty_barrier | mbarrier of the first CTA, one arrival per lane of every warp of the cluster that reads: all have read it |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..layouts.arith import select
from ..layouts.region import Region
from .mbarrier import arrive, arrive_cluster, arrive_expect_cluster, release, release_cluster, wait
from .memory import atomic_add_u32, load_shared_v4, store_shared_v4
from .warp import in_cta, shuffle, store_async_v4, sync_warp


@dataclass(frozen=True)
class Ring:
    """`phase` is the parity of the completed phase that a consumer waits for; a producer waits for `phase ^ 1`."""

    depth: cutlass.Constexpr[int]
    index: Int32
    phase: Int32

    @staticmethod
    def start(depth: int) -> Ring:
        return Ring(depth, Int32(0), Int32(0))

    def next(self) -> Ring:
        wraps = self.index == self.depth - 1
        return Ring(self.depth, select(wraps, Int32(0), self.index + 1), select(wraps, self.phase ^ 1, self.phase))

    def previous(self) -> Ring:
        """The previous stage, to address it; its phase is not valid."""
        return Ring(self.depth, select(self.index == 0, Int32(self.depth - 1), self.index - 1), Int32(0))


@dataclass(frozen=True)
class RingPlace:
    """The buffers at one ring position; `plan` is the layout of shared memory and `smem` its shared address."""

    plan: cutlass.Constexpr[Region]
    cluster: cutlass.Constexpr[int]
    smem: Int32
    ring: Ring

    @classmethod
    def first(cls, plan: Region, smem: Any, depth: int, cluster: int = 1) -> Self:
        return cls(plan, cluster, smem, Ring.start(depth))

    def next(self) -> Self:
        return replace(self, ring=self.ring.next())

    def shared(self, name: str) -> Any:
        return self.plan.address(self.smem, name, self.ring.index)


SCALE_BYTES = 4


@dataclass(frozen=True)
class Stage(RingPlace):
    """A stage of operands; `cluster`: CTAs whose loaders write into one another's stages: a loader then waits until the warps of all these
    CTAs have read the stage."""

    def previous(self) -> Stage:
        return replace(self, ring=self.ring.previous())

    @property
    def full(self) -> Any:
        return self.shared("full_barrier")

    @property
    def empty(self) -> Any:
        return self.shared("empty_barrier")

    @property
    def token_scales(self) -> Any:
        return self.shared("sfa")

    scale_step: ClassVar[int] = SCALE_BYTES  # from a token's scale to the next one's
    scales_in_pairs: ClassVar[bool] = True  # whether those of two tokens, the first of which is even, lie at a multiple of 8 bytes

    def reader_releases(self, lane: Any) -> Any:
        """The CTA of the cluster whose stage a lane of a reader gives back, below as many lanes as there are CTAs."""
        return lane

    def wait_full(self) -> None:
        wait(self.full, self.ring.phase)

    def wait_empty(self) -> None:
        wait(self.empty, self.ring.phase ^ 1)


@cute.jit
def release_stage(stage: Stage, lane: Int32):
    if cutlass.const_expr(stage.cluster > 1):
        if lane < stage.cluster:
            arrive_cluster(in_cta(stage.empty, stage.reader_releases(lane)))
    elif lane == 0:
        arrive(stage.empty)


TILE_BYTES = 16


@dataclass(frozen=True)
class TileQueue(RingPlace):
    """The place of the next tile; `cluster`: the CTAs that get tiles together.

    A warp that works on every `every`-th tile only, from place `begin` on, has a ring of so many times fewer places.
    """

    every: cutlass.Constexpr[int] = 1
    begin: Any = 0

    def alternate(self, begin: Any, every: int) -> Self:
        return replace(self, ring=Ring.start(self.ring.depth // every), every=every, begin=begin)

    def shared(self, name: str) -> Any:
        place = self.ring.index if self.every == 1 else self.ring.index * self.every + self.begin
        return self.plan.address(self.smem, name, place)

    def wait_empty(self) -> None:
        wait(self.shared("work_tile_empty_barrier"), self.ring.phase ^ 1)


@cute.jit
def fetch_numbers(counter: Int64, count: cutlass.Constexpr[int]):
    """For a whole warp: takes the next `count` numbers, which no other gets, and returns the first; `counter` is a u32 in global memory."""
    taken = Int32(0)
    if cute.arch.lane_idx() == 0:
        taken = atomic_add_u32(counter, count)
    return shuffle(taken, 0)


@cute.jit
def publish(queue: TileQueue, words: Callable[[int], tuple[Any, ...]]):
    """The publishing warp, of the cluster's first CTA, once the place is empty: the tile `words(cta)` for each CTA of the cluster.  `words`
    is called in the branch of a single lane, so that the other lanes compute nothing of it."""
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
    """A warp that works on tiles: the words of its next one, and the place of the one after it.  used: if they are few, the words that the
    caller uses, the first among them.  ptxas may load each on its own, and the arrival waits for all of them."""
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
