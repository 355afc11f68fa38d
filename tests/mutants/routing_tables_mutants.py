"""Mutants of routing_tables and its short simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from mutant import Mutant

RUNS = "tests/kernels/test_ep_tables.py"
mutant = partial(Mutant, archs=("sm_90a",))

MUTANTS = (
    mutant(
        "an expert's number beyond the last one is an expert",
        "off by one",
        "pairs_of",
        "name < problem.num_experts",
        "name <= problem.num_experts",
    ),
    mutant("pairs of other tokens keep a token from travelling", "wrong base", "list_key", "token + slot", "lane + slot"),
    mutant("a token travels for the last of its experts on a rank", "wrong number", "list_key", "other >= expert", "other <= expert"),
    mutant("a list begins where all before it end", "wrong base", "start_lists", "end - total - first", "end - total"),
    mutant("a list has one pair less", "off by one", "start_lists", "end - first", "end - first - 1"),
    mutant("rows of a rank lie before those of lower ranks", "wrong base", "start_rows", "source < rank", "source > rank"),
    mutant("rows of experts follow one another without padding", "wrong base", "start_rows", "padded_rows(rows)", "rows"),
    mutant(
        "an expert's rows begin behind those of other ranks' experts",
        "wrong base",
        "start_rows",
        'first = first - load_shared_u32(ctx.shared("starts", owner * local))',
        "",
    ),
    mutant("ranks are told in the set that they read", "stale buffer", "make_tables", "epoch & 1", "epoch & 0"),
    mutant(
        "counts of other ranks are not waited for",
        "missing order",
        "make_tables",
        "await_ranks(ctx, group, EpBarrier.SPLITS, epoch, Reached32)",
        "",
    ),
    mutant("ranks are told before all warps have", "missing order", "make_tables", "group.sync()", ""),
    mutant(
        "a launch that makes tables is not counted",
        "missing clean-up",
        "make_tables",
        'store_u32(ctx.at("launch_epoch"), epoch)',
        "",
    ),
    mutant(
        "pairs are placed before rows have begun",
        "missing order",
        "make_tables",
        "start_rows(ctx, thread, parity, cta, before); cute.arch.sync_threads()",
        "start_rows(ctx, thread, parity, cta, before)",
    ),
    mutant(
        "counters are not cleared before all have been",
        "missing order",
        "make_tables",
        "cute.arch.sync_threads(); each = div(num_tokens + (ctas * WARPS - 1), ctas * WARPS)",
        "each = div(num_tokens + (ctas * WARPS - 1), ctas * WARPS)",
    ),
    mutant("a CTA's tokens are those of the first one", "wrong base", "make_tables", "(cta * WARPS + warp) * each", "warp * each"),
    mutant("pairs of a CTA come before those of CTAs before it", "wrong base", "pairs_of_ctas", "ctx.sm > other", "ctx.sm < other"),
    mutant("the last CTA is counted once more", "off by one", "pairs_of_ctas", "ctas > other", "ctas >= other"),
    mutant("lists of all CTAs begin at one place", "wrong base", "start_lists", "end - total - first + before", "end - total - first"),
    mutant(
        "rows of all CTAs begin at one place",
        "wrong base",
        "make_tables",
        "start_rows(ctx, thread, parity, cta, before)",
        "start_rows(ctx, thread, parity, cta, Int32(0))",
    ),
    mutant(
        "a CTA without a turn is not counted as there",
        "missing clean-up",
        "routing_tables_kernel",
        "arrive_no_wait(ctx, group, EpBarrier.SPLITS)",
        "pass",
    ),
    mutant("CTAs do not wait for one another", "missing order", "leave_counts", "collect(ctx, group, EpBarrier.SPLITS, epoch)", ""),
    mutant("the row goes past one item of several", "off by one", "pass_places", "popc(same)", "1"),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: three launches on two ranks, of one CTA
    and of several."""
    import torch
    from ep_runs import sign_of
    from test_ep_tables import problem, run_kernel

    from megamoe_dsl.cases.routing import draw_experts
    from megamoe_dsl.kernels.moe.halves.config import RoutingTablesConfig
    from ptx_of import artifact

    def make(shape: str) -> None:
        moe, generator = problem(shape), torch.Generator().manual_seed(0)
        idx = [draw_experts(moe, count, torch.zeros(moe.num_experts), generator, 0.2) for count in (200, 7)]
        for one in idx:
            one[one == -1] = moe.num_experts
        run_kernel(artifact(RoutingTablesConfig(moe)), shape, idx, 2, 0, before=[idx[::-1]])

    return sign_of(lambda: make("more tokens of a warp than it sorts at a time")) or sign_of(lambda: make("three CTAs"))


def ptx_faults() -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Faults of the compiled PTX: architecture, name, and what runs the faulty kernel and says how the fault shows."""
    from fault_trial import trials
    from tables_faults import CASES
    from test_tables_faults import how_noticed

    return trials(CASES, how_noticed, lambda subject: "sm_90a")
