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

import cutlass
import cutlass.cute as cute

from .....device.warp import set_max_registers
from ...layouts.tile import LOADER_WARPS
from ...sm100.epilogue import finish_tiles
from ...sm100.epilogue_fc2 import finish_fc2
from ...sm100.kernel import finalise, initialise, run_loader_warp
from ..arguments import BiasedStageArguments, StageArguments
from ..config import StageConfig
from ..context import stage_context
from ..linear import schedule_tiles

FIRST = 0  # of the loader warps


@cute.kernel
def linear_pair_kernel(config: cutlass.Constexpr[StageConfig], args: StageArguments | BiasedStageArguments):
    """One CTA of a grouped GEMM; results of either linear leave as those of Linear2 do in the fused kernel."""
    ctx, warp, thread = stage_context(config, args), cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    initialise(ctx, warp, FIRST)
    if warp < LOADER_WARPS:
        set_max_registers(config.registers.loader, grow=False)
        run_loader_warp(ctx, warp, schedule_tiles, FIRST)
    else:
        set_max_registers(config.registers.epilogue, grow=True)
        finish_tiles(ctx, thread - 32 * LOADER_WARPS, finish_fc2)
    finalise(ctx, warp, FIRST)
