"""The SM90 context: shared fields and addresses, and what the math warps agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass

from ....device.memory import load_u64
from ....device.warp import named_barrier
from ..context import Context
from ..layouts.named_barrier import NamedBarrier
from .config import Sm90Config
from .maps import PHASE_STRIDE
from .smem_plan import MATH_WARPGROUPS

MATH_THREADS = 128 * MATH_WARPGROUPS


@dataclass(frozen=True)
class Sm90Context(Context):
    """Context of the SM90 roles."""

    phase_stride: ClassVar[int] = PHASE_STRIDE

    config: cutlass.Constexpr[Sm90Config]
    args: Any

    def result_rows(self, first: Any, steps: range) -> list[Any]:
        """Where results of pool rows `first + step` go: the combine rows of their tokens, on the tokens' ranks."""
        metadata = self.at("token_src_metadata", first)
        return [load_u64(metadata + step * 8) for step in steps]


def sync_math_warps() -> None:
    """All threads of both warpgroups."""
    named_barrier(NamedBarrier.EPILOGUE_ALL, MATH_THREADS)


def begin_exchange() -> None:
    """Before the math warps write the maxima of a tile: all of them have read those of the tile before.

    The wait for store_empty has ordered that already, but by way of single lanes of the store warp, which compute-sanitizer does not
    follow.  This barrier says it again for the tool.  It costs no time: another barrier, after the maxima are written, follows at once.
    """
    sync_math_warps()


def is_half_tile(ctx: Sm90Context, tile: Any) -> Any:
    """Whether all of the tokens are in the first half of the tile: then both warpgroups multiply that half."""
    return True if ctx.config.swap_ab else tile.valid_m <= ctx.config.part_tokens
