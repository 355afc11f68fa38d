"""The SM90 context: shared fields and addresses, and what the math warps agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int64

from ....device.tile_queue import TileQueue
from ....device.warp import named_barrier
from ....hardware.tensor_map import DESCRIPTOR_BYTES
from ..context import Context
from ..layouts.named_barrier import NamedBarrier
from .config import Sm90Config
from .maps import PHASE_STRIDE
from .smem_plan import MATH_WARPGROUPS, WORK_TILES

MATH_THREADS = 128 * MATH_WARPGROUPS


@dataclass(frozen=True)
class Sm90Context(Context):
    """Context of the SM90 roles."""

    config: cutlass.Constexpr[Sm90Config]
    args: Any

    @property
    def first_tile(self) -> TileQueue:
        """Of the queue of work tiles."""
        return TileQueue.start(self.config.smem.region, self.smem, WORK_TILES, self.config.cluster)

    def map(self, which: Any, phase: Any = 0) -> Any:
        """Address of a tensor map; `phase` is 0 for Linear1, 1 for Linear2."""
        if isinstance(phase, int):
            return self.args.maps + (which * DESCRIPTOR_BYTES + phase * PHASE_STRIDE)
        return self.args.maps + Int64(phase * PHASE_STRIDE) + which * DESCRIPTOR_BYTES


def sync_math_warps() -> None:
    """All threads of both warpgroups."""
    named_barrier(NamedBarrier.EPILOGUE_ALL, MATH_THREADS)


def begin_exchange() -> None:
    """Before math warps write maxima: all have read those of the last tile.

    Waiting for store_empty has shown that already, through single lanes of the store warp.  compute-sanitizer does not follow those, and
    here, just before the barrier that shows the maxima, another one makes nobody wait longer.
    """
    sync_math_warps()


def is_half_tile(ctx: Sm90Context, tile: Any) -> Any:
    """Whether all of the tokens are in the first half of the tile: then both warpgroups multiply that half."""
    return True if ctx.config.swap_ab else tile.valid_m <= ctx.config.part_tokens
