"""Mutants of grouped_gemm_combine and its short simulation."""

from __future__ import annotations

from functools import partial

import dispatch_grouped_gemm_mutants as dispatch
from mutant import Mutant

RUNS = "tests/kernels/test_ep_combine.py"
mutant = partial(Mutant, archs=("sm_90a",))
of_pairs = partial(Mutant, archs=("sm_100a",))

MUTANTS = (
    mutant("results are said to be there before they are", "missing order", "tiles_done", "wait_group(0)", ""),
    mutant(
        "other ranks' results are not waited for",
        "missing order",
        "combine",
        "await_ranks(ctx, group, EpBarrier.RESULTS, ctx.epoch + 1)",
        "",
    ),
    mutant("results are gathered without a proxy fence", "missing order", "combine", "fence_async_global()", ""),
    mutant("a task has a token more", "off by one", "combine", "first + tokens", "first + tokens + 1"),
    mutant(
        "the last tokens of a rank are left out",
        "off by one",
        "count_tasks",
        "ceil_div(ctx.args.num_tokens, ctx.config.task_tokens)",
        "div(ctx.args.num_tokens, ctx.config.task_tokens)",
    ),
    mutant(
        "every task begins with the first set of slots",
        "wrong phase",
        "combine",
        "loads = combine_pieces(ctx, warp, lane, first * plan.pieces, end, loads, 1, start_loads, lambda ctx, lane, piece: piece.weight)",
        "combine_pieces(ctx, warp, lane, first * plan.pieces, end, loads, 1, start_loads, lambda ctx, lane, piece: piece.weight)",
    ),
    mutant(
        "every piece is the token's first",
        "wrong base",
        "start_loads",
        "start = Int64(index - token * plan.pieces) * plan.part_bytes\n"
        'place = ctx.shared("combine_slots", warp, loads.index * problem.topk + lane)',
        'start = Int64(0) * plan.part_bytes\nplace = ctx.shared("combine_slots", warp, loads.index * problem.topk + lane)',
        (f"{RUNS}::test_one_rank_with_several_pieces_of_a_token",),
    ),
    mutant("a launch is not counted", "missing clean-up", "end_launch", 'store_u32(ctx.at("launch_epoch"), ctx.epoch + 1)', ""),
    mutant(
        "CTAs that still read are not waited for", "missing order", "end_launch", "collect(ctx, group, EpBarrier.READ, ctx.epoch + 1)", ""
    ),
    mutant(
        "tiles of the launch before the last are counted again",
        "missing clean-up",
        "send_results",
        'clear_counters(ctx, group, "finished", ctx.config.num_finished)',
        "",
        (f"{RUNS}::test_results_that_warps_send",),
    ),
    of_pairs(
        "a pair does not say that its tiles are done",
        "missing order",
        "halves.kernel:finish_tiles",
        "tiles_done(gemm.ep, group)",
        "",
    ),
    of_pairs(
        "results that are to be sent stay",
        "wrong base",
        "finish_results",
        "send_tile if config.scatter else store_tile_of",
        "send_tile if not config.scatter else store_tile_of",
    ),
    of_pairs("rows of every pass go where the first's do", "wrong base", "SentRows.begin", "self.tile.row + first", "self.tile.row"),
    of_pairs("rows of a pass go where its first does", "wrong base", "SentRows.addresses", "begun + step * 8", "begun"),
    of_pairs(
        "tensor memory is not given back",
        "missing clean-up",
        "end_pair",
        "tcgen05.free(load_shared_u32(ctx.shared('tmem_address')), ctx.config.tmem.allocated)",
        "",
    ),
)

OF_PAIRS = ("gather of pairs", "scatter of pairs", "serial of pairs")
ptx_faults = partial(dispatch.ptx_faults, ("combine", "scatter", "serial", "epilogue_buffers", *OF_PAIRS))


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: two launches, then one without a pair, of results that
    are sent and of results that are fetched."""
    from ep_runs import check_combine, problem, row_activations, sign_of, simulated, small_config
    from mega_moe_runs import inputs

    from megamoe_dsl.cases import random_case

    most = {"sm_90a": 20, "sm_100a": 40}[arch]
    moe = problem(most, num_experts=4, hidden=512, recipe=dispatch.RECIPES[arch])
    # An expert has rows enough for TMA to store a part of them, or for both warpgroups of an epilogue.
    case, nothing = random_case(moe, (most, 6), 0, mask=0.1, target_expert=1), random_case(moe, (2, 0), 0, mask=1.0)

    def check() -> None:
        for scatter in (True, False):
            ep = simulated(small_config(moe, task_tokens=3), case, {"scatter": scatter}, watchdog_ns=1_000_000)
            for one, launches in ((case, 2), (nothing, 1)):
                ep.store(inputs(one))
                check_combine(ep, one, row_activations(ep, 0), launches)

    return sign_of(check)
