"""What the math warps of SM90 agree on."""

from __future__ import annotations

from typing import Any

from ....device.warp import named_barrier
from ..context import Context
from ..layouts.smem_plan import NamedBarrier
from .memory_plan import MATH_WARPGROUPS

MATH_THREADS = 128 * MATH_WARPGROUPS


def sync_math_warps() -> None:
    """All threads of both warpgroups."""
    named_barrier(NamedBarrier.EPILOGUE_ALL, MATH_THREADS)


def begin_exchange() -> None:
    """Before the math warps write the maxima of a tile: all of them have read those of the tile before.

    The wait for store_empty has ordered that already, but by way of single lanes of the store warp, which compute-sanitizer does not
    follow.  This barrier says it again for the tool.  It costs no time: another barrier, after the maxima are written, follows at once.
    """
    sync_math_warps()


def is_half_tile(ctx: Context, tile: Any) -> Any:
    """Whether all of the tokens are in the first half of the tile: then both warpgroups multiply that half."""
    return True if ctx.config.swap_ab else tile.valid_m <= ctx.config.part_tokens
