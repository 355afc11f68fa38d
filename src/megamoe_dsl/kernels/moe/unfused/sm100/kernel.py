"""The linear stages of SM100: warps to roles.  Only this file knows warp indices and register counts.

| warps | role | registers |
|---|---|---|
| 0     | token loader     | loader |
| 1     | weight loader    | loader |
| 2     | MMA (even CTA)   | loader |
| 3     | scheduler, TMEM  | loader |
| 4-    | epilogue         | epilogue |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from .....blocks.warp_roles import WarpRole, run_roles
from ...layouts.tile import LOADER_WARPS
from ...sm100.epilogue import finish_tiles
from ...sm100.epilogue_fc2 import finish_fc2
from ...sm100.kernel import finalise, initialise, loader_roles
from ..arguments import BiasedStageArguments, StageArguments
from ..config import LinearConfig
from ..context import stage_context
from ..linear import schedule_tiles

FIRST = 0  # of the loader warps


def roles(config: LinearConfig) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    registers, loaders = config.registers, loader_roles(schedule_tiles, FIRST)

    def finish(ctx: Any, warp: Any) -> None:
        finish_tiles(ctx, cute.arch.thread_idx()[0] - 32 * LOADER_WARPS, finish_fc2)

    return (
        WarpRole("loaders", range(LOADER_WARPS), lambda ctx, warp: run_roles(loaders, ctx, warp), registers.loader),
        WarpRole("epilogue", None, finish, registers.epilogue),
    )


@cute.kernel
def linear_pair_kernel(config: cutlass.Constexpr[LinearConfig], args: StageArguments | BiasedStageArguments):
    """One CTA of a grouped GEMM; results of either linear leave as those of Linear2 do in the fused kernel."""
    ctx, warp = stage_context(config, args), cute.arch.warp_idx()
    initialise(ctx, warp, FIRST)
    run_roles(roles(config), ctx, warp)
    finalise(ctx, warp, FIRST)
