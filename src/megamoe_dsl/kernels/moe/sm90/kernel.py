"""The SM90 kernel: a table of roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

Where warps decode packed weights, for tiles of many tokens, one warpgroup dispatches, loads, schedules and stores."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from ....blocks.cta import Step, WarpRole, acquire_maps, end_together, init_barriers, one_warp, run_roles, set_up, warp_group
from ....device.e2m1 import store_table
from ..context import Context
from ..dispatch import dispatch
from ..tile_scheduler import schedule_tiles
from .load import decode_weights, load_operands, load_tokens, load_weights, schedule_and_store, store_tiles
from .math import math


def roles(config: Any) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    registers, first = config.registers, config.warps.dispatch + config.warps.loader
    dispatches = WarpRole("dispatch", range(config.warps.dispatch), lambda ctx, warp: dispatch(ctx, cute.arch.thread_idx()[0]))
    multiplies = WarpRole("math", None, lambda ctx, warp: math(ctx, warp - first), registers["epilogue"], grows=True)
    if config.decoded:
        loads, stores = one_warp("token and weight loader", 2, load_operands), one_warp("tile scheduler, store", None, schedule_and_store)
        last = first + config.epilogue_warps
        decode_warps = range(last, last + config.warps.decode)
        return (
            warp_group("others", range(first), (dispatches, loads, stores), registers["loader"]),
            WarpRole("decode", decode_warps, lambda ctx, warp: decode_weights(ctx, warp - last), registers["decode"]),
            multiplies,  # last: where the code of decode warps comes after theirs, ptxas gives them too few registers
        )
    loaders = (
        one_warp("token loader", 4, load_tokens),
        one_warp("weight loader", 5, load_weights),
        one_warp("store", 6, store_tiles),
        one_warp("tile scheduler", None, schedule_tiles),
    )
    return (
        WarpRole(dispatches.name, dispatches.warps, dispatches.run, registers["dispatch"]),
        warp_group("loaders", range(config.warps.dispatch, first), loaders, registers["loader"]),
        multiplies,
    )


def steps(config: Any) -> tuple[Step, ...]:
    """Who sets up mbarriers, tensor maps and the table of decoded values."""
    barriers, maps, table = (3, 2, 0) if config.decoded else (5, 4, 6)  # warps
    decoded = ((table, lambda ctx: store_table(ctx.shared("decoded"))),) if config.packed else ()
    return (barriers, init_barriers), (maps, acquire_maps), *decoded


@cute.kernel
def mega_moe_kernel(config: cutlass.Constexpr[Any], args: Any):
    """One CTA, from set-up to tear-down."""
    warp, ctx = cute.arch.warp_idx(), Context.of_cta(config, args)
    set_up(ctx, warp, steps(config))
    run_roles(roles(config), ctx, warp)
    end_together(ctx)
