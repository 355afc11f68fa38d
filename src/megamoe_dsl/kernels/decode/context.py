"""What every role of the kernel needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32

from ...blocks.tiles import TileContext
from ...device.memory import load_shared_u16
from ...device.ptx import emit_to
from ...device.ring import Ring, Stage, TileQueue, read_tile
from ...device.warp import ballot
from .config import ABSENT, LINE

LAST = -1


@dataclass(frozen=True)
class DecodeTile:
    """Weight rows of an expert by its rows of block `block` (row_blocks.py), of which there are `count`; n_block is -1 past the last
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
class DecodeContext(TileContext):
    """`config` and `maps`, the shared address of the plan, the CTA's number in the grid, and the address of this launch's results."""

    config: cutlass.Constexpr[Any]
    args: Any
    maps: Any
    smem: Int32
    cta: Int32
    results: Int64

    def first_stage(self, group: Any) -> GroupStage:
        return GroupStage(self.config.smem.region, 1, self.smem, Ring.start(self.config.num_stages), Int32(group))

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
