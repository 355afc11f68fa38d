"""The kernels of the stages: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.cta import Step, WarpRole, acquire_maps, end_together, init_barriers, run_roles, set_up, warp_group
from ....blocks.rank_barrier import Group, rank_barrier
from ....blocks.sm90.packed_share import PackedShare
from ....blocks.sm90.share import MathThread, Share
from ....blocks.sm100.pair_warps import end_pair
from ....blocks.tiles import SharedTable
from ....device.e2m1 import store_table
from ....device.mbarrier import wait
from ....device.memory import store_u32
from ....device.ring import Ring
from ....device.warp import named_barrier
from ....schedule.fused_moe import Block
from ....schedule.gemm import GroupedOrder
from ..combine import combine_tokens
from ..context import WorkTile
from ..dispatch import THREADS, clean_workspace, exchange_counts
from ..layouts.smem_plan import DISPATCH_WARPS, LOADER_WARPS, NamedBarrier, RankBarrier
from ..pool import pull_tokens
from ..sm90.load import load_tokens, load_weights
from ..sm90.math import compute_tiles, epilogue_of, with_bias
from ..sm100 import kernel as sm100
from ..sm100.epilogue import finish_fc2, finish_tiles
from ..tile_scheduler import fill_table, schedule_tiles
from .config import SWIGLU_WARPS, StageConfig
from .context import StageContext
from .pool_rows import activate_part, each_part, push_results


@dataclass(frozen=True)
class LinearOrder(GroupedOrder):
    """Expert by expert, tiles of one linear as the fused kernel's roles know them."""

    config: cutlass.Constexpr[StageConfig]
    table: SharedTable

    def block(self, step: Any, local: Any, sizes: Any) -> Any:
        one = super().block(step, local, sizes)
        return Block(self.config.part.phase, **vars(one), pool_block=self.table.first_block(one.expert) + one.m_block)


schedule_linear: Any = partial(schedule_tiles, order=LinearOrder)


@cute.jit
def finish_tile(ctx: StageContext, tile: WorkTile, me: Share | PackedShare, sums: Any, stores: Ring):
    """Sums as BF16 to the stage's results: what the fused kernel does with those of Linear2.  Nobody else reads what is staged."""
    epilogue_of(ctx).finish_fc2(ctx, tile, me, with_bias(ctx, tile, me, ctx.result_phase, sums))
    return stores


TABLE_WARP = DISPATCH_WARPS  # of dispatch
TOKENS_WARP, WEIGHTS_WARP, _, DECODED_WARP = range(LOADER_WARPS)


def steps(config: StageConfig) -> tuple[Step, ...]:
    """Who sets up mbarriers, and what linear stages need besides: tensor maps and the table of decoded values."""
    if config.multiplies and config.arch.has_tensor_memory:
        return sm100.steps(0)
    maps = ((TOKENS_WARP, acquire_maps),) if config.multiplies else ()
    decoded = ((DECODED_WARP, lambda ctx: store_table(ctx.shared("decoded"))),) if config.multiplies and config.packed else ()
    return (WEIGHTS_WARP, init_barriers), *maps, *decoded


@cute.kernel
def dispatch_kernel(config: cutlass.Constexpr[StageConfig], args: Any):
    """One CTA of dispatch: the counts of the ranks, then the tokens."""
    ctx, warp, thread = StageContext.of_cta(config, args), cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    set_up(ctx, warp, steps(config))
    if warp == TABLE_WARP:
        fill_table(ctx)
    else:
        exchange_counts(ctx, Group(NamedBarrier.DISPATCH, THREADS, thread))
        wait(ctx.barrier("counts"), Int32(0))
        pull_tokens(ctx, warp)


@cute.jit
def run_loader_warp(ctx: StageContext, warp: Any):
    """One of the loaders, by the number of its warp."""
    for index, load in enumerate((load_tokens, load_weights, schedule_linear)):
        if warp == index:
            load(ctx)


def linear_roles(config: StageConfig) -> tuple[WarpRole, ...]:
    """All warps of a CTA of a linear stage; results of either linear leave as those of Linear2 do in the fused kernel."""
    registers, warps = config.registers, range(LOADER_WARPS)

    def multiply(ctx: Any, warp: Any) -> None:
        index = warp - LOADER_WARPS
        compute_tiles(ctx, MathThread(index >> 2, index & 3, cute.arch.lane_idx()), finish_tile)

    def finish(ctx: Any, warp: Any) -> None:
        finish_tiles(ctx, cute.arch.thread_idx()[0] - 32 * LOADER_WARPS, finish_fc2)

    if config.arch.has_tensor_memory:
        loaders, run = warp_group("loaders", warps, sm100.loaders(schedule_linear), registers["loader"]), finish
    else:
        loaders, run = WarpRole("loaders", warps, run_loader_warp, registers["loader"]), multiply
    return loaders, WarpRole("math, epilogue", None, run, registers["epilogue"], grows=True)


@cute.kernel
def linear_kernel(config: cutlass.Constexpr[StageConfig], args: Any):
    """One CTA of a grouped GEMM."""
    ctx, warp = StageContext.of_cta(config, args), cute.arch.warp_idx()
    set_up(ctx, warp, steps(config))
    run_roles(linear_roles(config), ctx, warp)
    if cutlass.const_expr(config.arch.has_tensor_memory):
        end_pair(ctx, warp)
    else:
        end_together(ctx)


@cute.kernel
def swiglu_kernel(config: cutlass.Constexpr[StageConfig], args: Any):
    """One CTA of SwiGLU: its warps walk over the received tokens."""
    ctx, warp = StageContext.of_cta(config, args), cute.arch.warp_idx()
    set_up(ctx, warp, steps(config))
    if warp == 0:
        fill_table(ctx)
        if (ctx.sm == 0) & (cute.arch.lane_idx() == 0):
            # Linear1 is over: Linear2 counts its tiles anew.
            store_u32(ctx.at("tile_counter"), 0)
    each_part(ctx, warp, SWIGLU_WARPS, config.token_parts, activate_part)


@cute.kernel
def combine_kernel(config: cutlass.Constexpr[StageConfig], args: Any):
    """One CTA of combine: results to the tokens' ranks, the barrier of all ranks, the sums; meanwhile the workspace is cleared."""
    ctx, warp, thread = StageContext.of_cta(config, args), cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    set_up(ctx, warp, steps(config))
    if warp < DISPATCH_WARPS:
        if warp == 0:
            fill_table(ctx)
        named_barrier(NamedBarrier.DISPATCH_EPILOGUE, config.num_threads)
        clean_workspace(ctx, Group(NamedBarrier.DISPATCH, THREADS, thread))
    else:
        index = warp - DISPATCH_WARPS
        push_results(ctx, index, cute.arch.lane_idx())
        # A rank past the barrier may begin its next call and change the counts: the table was made of them before.
        rank_barrier(ctx, Group(NamedBarrier.EPILOGUE_ALL, 32 * config.epilogue_warps, thread - THREADS), RankBarrier.BEFORE_COMBINE)
        named_barrier(NamedBarrier.DISPATCH_EPILOGUE, config.num_threads)
        combine_tokens(ctx, index, cute.arch.lane_idx())
