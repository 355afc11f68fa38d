"""What every role of the kernel needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32

from ...blocks.cta import CtaContext
from ...device.memory import load_shared_u16
from ...device.ptx import emit_to
from ...device.ring import Ring, Stage, TileQueue, read_tile
from ...device.warp import ballot
from ...layouts.arith import div, select
from .config import ABSENT, GROUPS, LINE, WORK_TILES
from .problem import FC1, FC2

LAST = -1


@dataclass(frozen=True)
class DecodeTile:
    """Weight rows of an expert by its rows of block `block` (kernel.py), of which there are `count`; n_block is -1 past the last
    tile.  `part` is 0 of a whole tile, 1 or 2 of half of one."""

    phase: Int32
    part: Int32
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
    """For the weight loader, which takes tiles of all warpgroups in turn: the next stage of the tile's ring, and where each ring is."""

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
    """`config` and `maps`, the shared address of the plan, the CTA's number in the grid, and the address of this launch's results."""

    config: cutlass.Constexpr[Any]
    args: Any
    maps: Any
    smem: Int32
    cta: Int32
    results: Int64

    def first_stage(self, group: Any) -> GroupStage:
        return GroupStage(self.config.region, 1, self.smem, Ring.start(self.config.num_stages), Int32(group))

    @property
    def first_tile(self) -> TileQueue:
        return TileQueue.first(self.config.region, self.smem, WORK_TILES)

    def first_tile_of(self, group: Any) -> TileQueue:
        return self.first_tile.alternate(group, GROUPS)

    def result(self, name: str, *index: Any) -> Any:
        return self.config.results.address(self.results, name, *index)

    def writing_in(self, region: Any) -> DecodeContext:
        return replace(self, results=self.args.memory + LINE + Int64(region) * self.config.results.size)

    def slot(self, tile: DecodeTile, row: Any) -> Any:
        return Int32(load_shared_u16(self.shared("slots", tile.block, row)))


def any_absent(words: Sequence[Any]) -> Boolean:
    """Whether any lane of a warp has a word that nobody has written yet."""
    greatest = reduce(partial(emit_to, Uint32, "max.u32 {}, {}, {};"), words)
    return ballot(Int32(Int32(greatest) == ABSENT)) != 0


@cute.jit
def next_tile(queue: TileQueue) -> tuple[DecodeTile, TileQueue]:
    """A warp's next tile, and the place of the one after it."""
    (which, n_block, expert, count), following = read_tile(queue)
    return DecodeTile(which & 1, which >> 1 & 3, which >> 3, n_block, expert, count), following


@dataclass(frozen=True)
class TileOrder:
    """Tiles, and their numbers: all of Linear1 come first, an expert's one after another; its last `halved` ones have two numbers each."""

    whole: Int32
    halved: Int32
    fc2: Int32

    @staticmethod
    def of(ctx: DecodeContext, blocks: Any) -> TileOrder:
        """For so many tiles of rows.  Where the last tiles of Linear1 are too few for all CTAs, halves are more even."""
        fc1, sms = blocks * ctx.config.n_blocks(FC1), ctx.config.num_sms
        last = fc1 - div(fc1, sms) * sms if not ctx.config.source.whole else Int32(0)
        halved = select(2 * last <= sms, last, Int32(0))
        return TileOrder(fc1 - halved, halved, blocks * ctx.config.n_blocks(FC2))

    @property
    def total(self) -> Any:
        return self.whole + 2 * self.halved + self.fc2

    def place(self, ctx: DecodeContext, number: Any) -> tuple[Any, ...]:
        """Linear, part, block of rows and n_block of the tile with this number."""
        fc1, fc2, behind = ctx.config.n_blocks(FC1), ctx.config.n_blocks(FC2), number - self.whole
        is_fc2, is_half = behind >= 2 * self.halved, (behind >= 0) & (behind < 2 * self.halved)
        within = select(is_fc2, behind - 2 * self.halved, select(is_half, self.whole + (behind >> 1), number))
        block = select(is_fc2, div(within, fc2), div(within, fc1))
        part = select(is_half, (behind & 1) + 1, Int32(0))
        return select(is_fc2, Int32(FC2), Int32(FC1)), part, block, within - block * select(is_fc2, Int32(fc2), Int32(fc1))
