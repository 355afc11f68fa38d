"""What every role of the kernel needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ...device.memory import load_shared_u16
from ...device.ring import Stage, TileQueue, read_tile
from ...layouts.arith import div, select
from .config import WORK_TILES
from .problem import FC1, FC2

LAST = -1


@dataclass(frozen=True)
class DecodeTile:
    """64 rows of the weights of an expert by its rows of block `block` (slots.py), of which there are `count`; n_block is -1 past the last
    tile."""

    phase: Int32
    block: Int32
    n_block: Int32
    expert: Int32
    count: Int32

    def valid(self) -> Boolean:
        return self.n_block != LAST


@dataclass(frozen=True)
class DecodeContext:
    """`config` and `maps`, the shared address of the plan, and the CTA's number in the grid."""

    config: cutlass.Constexpr[Any]
    args: Any
    maps: Any
    smem: Int32
    cta: Int32

    @property
    def first_stage(self) -> Stage:
        return Stage.first(self.config.region, self.smem, self.config.num_stages)

    @property
    def first_tile(self) -> TileQueue:
        return TileQueue.start(self.config.region, self.smem, WORK_TILES)

    def shared(self, name: str, *index: Any) -> Any:
        """Shared address of an element of the SMEM plan."""
        return self.config.region.address(self.smem, name, *index)

    def barrier(self, name: str, index: Any = 0) -> Any:
        """Shared address of an mbarrier."""
        return self.shared(f"{name}_barrier", index)

    def counter(self, name: str, *index: Any) -> Any:
        """Global address of a counter."""
        return self.config.counters.address(self.args.counters, name, *index)

    def slot(self, tile: DecodeTile, row: Any) -> Any:
        """The top-k slot of a row of a tile."""
        return Int32(load_shared_u16(self.shared("slots", tile.block, row)))

    def k_blocks(self, tile: DecodeTile) -> Any:
        return select(tile.phase == FC1, Int32(self.config.k_blocks(FC1)), Int32(self.config.k_blocks(FC2)))


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
