"""The SM90 kernel: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

| warps | role | registers |
|---|---|---|
| 0-3   | dispatch, pull, clean | dispatch |
| 4     | token loader          | loader |
| 5     | weight loader         | loader |
| 6     | store of Linear1 tiles | loader |
| 7     | tile scheduler        | loader |
| 8-15  | math, epilogues, combine | epilogue |

Where warps decode packed weights, for tiles of many tokens, a warpgroup does what two do otherwise:

| warps | role | registers |
|---|---|---|
| 0, 1  | dispatch, pull, clean | loader |
| 2     | token and weight loader | loader |
| 3     | tile scheduler, store of Linear1 tiles | loader |
| 4-11  | math, epilogues, combine | epilogue |
| 12-15 | decode | decode |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from ....blocks.setup import acquire_maps, init_barriers
from ....device.cluster import sync_cluster
from ....device.e2m1 import store_table
from ....device.warp import set_max_registers, smem_base
from ..arguments import Arguments
from ..context import Context
from ..dispatch import dispatch
from ..layouts.tile import LOADER_WARPS
from ..tile_scheduler import schedule_tiles
from .config import Sm90Config
from .decode import decode_weights
from .load import load_operands, load_tokens, load_weights
from .maps import NUM_MAPS
from .math import math
from .store import schedule_and_store, store_tiles

ORDER = ("dispatch", "loaders", "math")
DECODING_ORDER = ("others", "math", "decode")
"""Warpgroups by the indices of their warps, as in the tables above.  Any order computes the same; a scheduler may prefer some indices."""
TOKENS_WARP, WEIGHTS_WARP, STORE_WARP, SCHEDULER_WARP = range(LOADER_WARPS)
"""Of the loaders."""
TABLE_WARP, OPERANDS_WARP, DEALING_WARP = 0, 2, 3
"""Of the others, where warps decode."""


@dataclass(frozen=True)
class Warps:
    """Those of a CTA that have one role: `count` of `all`, from `first` on."""

    first: int
    count: int
    all: int

    def have(self, warp: Any) -> Any:
        """Whether a warp is one of them."""
        if self.first == 0:
            return warp < self.count
        if self.first + self.count == self.all:
            return warp >= self.first
        return (warp >= self.first) & (warp < self.first + self.count)

    def index(self, one: Any, each: int = 1) -> Any:
        """A warp counted within them, or a thread with 32 of each."""
        return one - self.first * each if self.first else one


def warps_of(config: Sm90Config, role: str) -> Warps:
    """By the name that an order has for it."""
    beside = {"dispatch": config.dispatch_warps, "loaders": config.loader_warps}
    counts = {**beside, "others": sum(beside.values()), "math": config.epilogue_warps, "decode": config.decode_warps}
    order = DECODING_ORDER if config.decoded else ORDER
    before = order[: order.index(role)]
    return Warps(sum(counts[one] for one in before), counts[role], sum(counts[one] for one in order))


@cute.jit
def initialise(ctx: Context, warp: Any):
    """mbarriers, visible to the cluster and to TMA."""
    decoded = ctx.config.decoded
    tokens, barriers, table = (OPERANDS_WARP, DEALING_WARP, TABLE_WARP) if decoded else (TOKENS_WARP, WEIGHTS_WARP, STORE_WARP)
    first = warps_of(ctx.config, "others" if decoded else "loaders").first
    if warp == first + barriers:
        init_barriers(ctx)
    if warp == first + tokens:
        acquire_maps(ctx, NUM_MAPS)
    if cutlass.const_expr(ctx.config.packed):
        if warp == first + table:
            store_table(ctx.shared("decoded"))
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()
    else:
        cute.arch.sync_threads()


@cute.jit
def finalise(ctx: Context):
    """No CTA leaves while another may still reach its SMEM."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()


@cute.jit
def run_loader_warp(ctx: Context, warp: Any):
    """One of four: token loader, weight loader, store or scheduler."""
    set_max_registers(ctx.config.registers.loader, grow=False)
    first = warps_of(ctx.config, "loaders").first
    if warp == first + TOKENS_WARP:
        load_tokens(ctx)
    elif warp == first + WEIGHTS_WARP:
        load_weights(ctx)
    elif warp == first + STORE_WARP:
        store_tiles(ctx)
    else:
        schedule_tiles(ctx)


@cute.jit
def run_other_warp(ctx: Context, warp: Any, thread: Any):
    """One of the four beside math and decode warps."""
    set_max_registers(ctx.config.registers.loader, grow=False)
    others = warps_of(ctx.config, "others")
    if others.index(warp) < ctx.config.dispatch_warps:
        dispatch(ctx, others.index(thread, 32))
    elif warp == others.first + OPERANDS_WARP:
        load_operands(ctx)
    else:
        schedule_and_store(ctx)


@cute.jit
def run_math_warp(ctx: Context, warp: Any):
    """Runs one of the eight math warps."""
    set_max_registers(ctx.config.registers.epilogue, grow=True)
    math(ctx, warps_of(ctx.config, "math").index(warp))


@cute.jit
def run_decode_warp(ctx: Context, warp: Any):
    """One of the four that a kernel with packed weights and large tiles adds."""
    set_max_registers(ctx.config.registers.decode, grow=False)
    decode_weights(ctx, warps_of(ctx.config, "decode").index(warp))


@cute.kernel
def mega_moe_kernel(config: cutlass.Constexpr[Sm90Config], args: Arguments):
    """One CTA, from set-up to tear-down."""
    alignment = config.smem.region.alignment
    buffer: Any = cutlass.Array(cutlass.Int8, config.smem.num_bytes, space=cutlass.AddressSpace.smem, alignment=alignment)
    warp = cute.arch.warp_idx()
    thread = cute.arch.thread_idx()[0]
    rank = cutlass.Int32(cute.arch.block_idx_in_cluster() if config.cluster > 1 else 0)
    ctx = Context(config, args, smem_base(buffer), cute.arch.block_idx()[0], rank)
    initialise(ctx, warp)
    if cutlass.const_expr(config.decoded):
        if warps_of(config, "others").have(warp):
            run_other_warp(ctx, warp, thread)
        elif warps_of(config, "decode").have(warp):
            run_decode_warp(ctx, warp)
        else:
            run_math_warp(ctx, warp)  # last: where the code of decode warps comes after theirs, ptxas gives them too few registers
    else:
        if warps_of(config, "dispatch").have(warp):
            set_max_registers(config.registers.dispatch, grow=False)
            dispatch(ctx, warps_of(config, "dispatch").index(thread, 32))
        elif warps_of(config, "loaders").have(warp):
            run_loader_warp(ctx, warp)
        else:
            run_math_warp(ctx, warp)
    finalise(ctx)
