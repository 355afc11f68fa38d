"""The SM90 context: shared fields and addresses, the weight scales, and the tile as a math warp sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.cluster import in_cta
from ....device.mbarrier import arrive, arrive_cluster
from ....device.ring import Ring
from ....device.warp import named_barrier
from ....hardware.tensor_map import DESCRIPTOR_BYTES
from ..context import Arguments, Context
from ..layouts.named_barrier import NamedBarrier
from .config import Sm90Config
from .maps import PHASE_STRIDE
from .smem_plan import MATH_WARPGROUPS

MATH_THREADS = 128 * MATH_WARPGROUPS


@dataclass(frozen=True)
class Sm90Arguments(Arguments):
    """Adds the FP32 weight scales: fc1_sf f32 [El, 2I / 128, H / 128] (gate blocks, then up blocks), fc2_sf f32 [El, H / 128, I / 128]."""

    fc1_sf: Int64
    fc2_sf: Int64


@dataclass(frozen=True)
class Sm90Context(Context):
    """Context of the SM90 roles."""

    config: cutlass.Constexpr[Sm90Config]
    args: Sm90Arguments

    def map(self, which: Any, phase: Any = 0) -> Any:
        """Address of a tensor map; `phase` is 0 for Linear1, 1 for Linear2."""
        if isinstance(phase, int):
            return self.args.maps + (which * DESCRIPTOR_BYTES + phase * PHASE_STRIDE)
        return self.args.maps + Int64(phase * PHASE_STRIDE) + which * DESCRIPTOR_BYTES


@dataclass(frozen=True)
class MathThread:
    """A thread of the math warpgroups: warpgroup (128 weight rows), warp within it, lane; its two tokens of every group of 8 are
    `pair` and `pair + 1`, its weight rows 64 b + 16 warp + lane / 4 and 8 more, for b in (0, 1)."""

    group: Int32
    warp: Int32
    lane: Int32

    @property
    def has_own_weights(self) -> bool:
        """Whether its warpgroup's weight rows, 128 of the tile's, are not the other's too."""
        return True

    @property
    def pair(self) -> Any:
        return (self.lane & 3) * 2

    @property
    def row(self) -> Any:
        return self.lane >> 2


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


@cute.jit
def release_stage(ctx: Sm90Context, me: MathThread, ring: Ring):
    """This warp is through with the stage, said to the loaders of every CTA that may write it."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        if me.lane < ctx.config.cluster:
            arrive_cluster(in_cta(ctx.barrier("empty", ring.index), me.lane))
    elif me.lane == 0:
        arrive(ctx.barrier("empty", ring.index))
