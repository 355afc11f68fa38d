"""What every role of the kernel needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from ...blocks.cta import CtaContext
from ...device.memory import load_shared_u16
from ...device.ring import Ring, Stage, TileQueue, read_tile
from ...layouts.arith import div, select
from .config import GROUPS, LINE, MOST_COUNTERS, WORK_TILES
from .problem import FC1, FC2

LAST = -1


@dataclass(frozen=True)
class DecodeTile:
    """64 rows of the weights of an expert by its rows of block `block` (kernel.py), of which there are `count`; n_block is -1 past the last
    tile."""

    phase: Int32
    block: Int32
    n_block: Int32
    expert: Int32
    count: Int32

    def valid(self) -> Boolean:
        return self.n_block != LAST


@dataclass(frozen=True)
class GroupStage(Stage):
    """A stage of a warpgroup's ring.  Whoever waits for a stage waits for each of its uses, or for none of them: a barrier's parity says
    no more than whether the next phase is over."""

    group: Int32

    def shared(self, name: str) -> Any:
        return self.plan.address(self.smem, name, self.group * self.ring.depth + self.ring.index)


@dataclass(frozen=True)
class Turns:
    """For a loader, which takes tiles of all warpgroups in turn: the next stage of the tile's ring, and where each ring is."""

    stage: GroupStage
    index: tuple[Int32, ...]
    phase: tuple[Int32, ...]

    def after(self, stage: GroupStage) -> Turns:
        """At the next warpgroup's tile, where this one's has ended before `stage`."""
        mine = stage.group
        index = tuple(select(mine == group, stage.ring.index, old) for group, old in enumerate(self.index))
        phase = tuple(select(mine == group, stage.ring.phase, old) for group, old in enumerate(self.phase))
        following = select(mine == GROUPS - 1, Int32(0), mine + 1)
        ring = Ring(stage.ring.depth, index[0], phase[0])
        for group in range(1, GROUPS):
            own = following == group
            ring = Ring(ring.depth, select(own, index[group], ring.index), select(own, phase[group], ring.phase))
        return Turns(replace(stage, ring=ring, group=following), index, phase)


@dataclass(frozen=True)
class DecodeContext(CtaContext):
    """`config` and `maps`, the shared address of the plan, the CTA's number in the grid, and the address of this launch's counters."""

    config: cutlass.Constexpr[Any]
    args: Any
    maps: Any
    smem: Int32
    cta: Int32
    counters: Int64

    def first_stage(self, group: Any) -> GroupStage:
        return GroupStage(self.config.region, 1, self.smem, Ring.start(self.config.num_stages), Int32(group))

    @property
    def first_turn(self) -> Turns:
        return Turns(self.first_stage(0), (Int32(0),) * GROUPS, (Int32(0),) * GROUPS)

    @property
    def first_tile(self) -> TileQueue:
        return TileQueue.first(self.config.region, self.smem, WORK_TILES)

    def first_tile_of(self, group: Any) -> TileQueue:
        """The first place of a warpgroup's tiles."""
        return self.first_tile.alternate(group, GROUPS)

    def counter(self, name: str, *index: Any) -> Any:
        return self.config.counters.address(self.counters, name, *index)

    def counting_in(self, region: Any) -> DecodeContext:
        """The same where counters are those of region 0 or 1."""
        return replace(self, counters=self.args.counters + LINE + Int64(region) * MOST_COUNTERS)

    def slot(self, tile: DecodeTile, row: Any) -> Any:
        """The top-k slot of a row of a tile."""
        return Int32(load_shared_u16(self.shared("slots", tile.block, row)))


@cute.jit
def next_tile(queue: TileQueue) -> tuple[DecodeTile, TileQueue]:
    """A warp's next tile, and the place of the one after it."""
    (which, n_block, expert, count), following = read_tile(queue)
    return DecodeTile(which & 1, which >> 1, n_block, expert, count), following


def place_of(ctx: DecodeContext, number: Any, blocks: Any) -> tuple[Any, Any, Any]:
    """Linear, block of rows and n_block of the tile with this number: all of Linear1 come first, an expert's tiles one after another."""
    fc1, fc2 = ctx.config.n_blocks(FC1), ctx.config.n_blocks(FC2)
    first = blocks * fc1
    phase = select(number < first, Int32(FC1), Int32(FC2))
    within = select(number < first, number, number - first)
    block = select(number < first, div(within, fc1), div(within, fc2))
    return phase, block, within - block * select(number < first, Int32(fc1), Int32(fc2))
