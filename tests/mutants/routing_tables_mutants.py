"""Mutants of routing_tables and its short simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from mutant import Mutant

TABLES, SORT = "kernels/ep_moe/tables.py", "blocks/block_sort.py"
RUNS = "tests/kernels/test_ep_tables.py"
mutant = partial(Mutant, archs=("sm_90a",))

MUTANTS = (
    mutant(
        "an expert's number beyond the last one is an expert",
        "off by one",
        TABLES,
        "(name < problem.num_experts)",
        "(name <= problem.num_experts)",
    ),
    mutant(
        "pairs of other tokens keep a token from travelling",
        "wrong base",
        TABLES,
        "shuffle(expert, token + slot)",
        "shuffle(expert, lane + slot)",
    ),
    mutant("a token travels for the last of its experts on a rank", "wrong number", TABLES, "(other >= expert)", "(other <= expert)"),
    mutant("a list begins where all before it end", "wrong base", TABLES, "end - total - first)", "end - total)"),
    mutant("a list has one pair less", "off by one", TABLES, "ctx.args.rank), end - first)", "ctx.args.rank), end - first - 1)"),
    mutant(
        "rows of a rank lie before those of lower ranks",
        "wrong base",
        TABLES,
        "select(source < rank, of_source",
        "select(source > rank, of_source",
    ),
    mutant("rows of experts follow one another without padding", "wrong base", TABLES, "padded = padded_rows(rows)", "padded = rows"),
    mutant(
        "an expert's rows begin behind those of other ranks' experts",
        "wrong base",
        TABLES,
        '        first = first - load_shared_u32(ctx.shared("starts", owner * local))\n',
        "",
    ),
    mutant("ranks are told in the set that they read", "stale buffer", TABLES, "    parity = epoch & 1\n", "    parity = epoch & 0\n"),
    mutant(
        "counts of other ranks are not waited for", "missing order", TABLES, "    await_ranks(ctx, group, EpBarrier.SPLITS, epoch)\n", ""
    ),
    mutant("ranks are told before all warps have", "missing order", TABLES, "    group.sync()\n    signal", "    signal"),
    mutant(
        "a launch that makes tables is not counted",
        "missing clean-up",
        TABLES,
        '        store_u32(ctx.at("launch_epoch"), epoch)',
        "        pass",
    ),
    mutant(
        "pairs are placed before rows have begun",
        "missing order",
        TABLES,
        "    cute.arch.sync_threads()\n    place_pairs",
        "    place_pairs",
    ),
    mutant("counters are not cleared before all have been", "missing order", TABLES, "    cute.arch.sync_threads()\n    each", "    each"),
    mutant("the row goes past one item of several", "off by one", SORT, "popc(found.same)", "1"),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: three launches on two ranks."""
    import torch
    from ep_runs import sign_of
    from test_ep_tables import problem, run

    from megamoe_dsl.cases.routing import draw_experts

    shape = "more tokens of a warp than it sorts at a time"
    moe, generator = problem(shape), torch.Generator().manual_seed(0)
    idx = [draw_experts(moe, count, torch.zeros(moe.num_experts), generator, 0.2) for count in (200, 7)]
    for one in idx:
        one[one == -1] = moe.num_experts
    return sign_of(lambda: run(shape, idx, 99, True, launches=3))


def ptx_faults() -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Faults of the compiled PTX: architecture, name, and what runs the faulty kernel and says how the fault shows."""
    from fault_trial import trials
    from tables_faults import CASES
    from test_tables_faults import how_noticed

    return trials(CASES, how_noticed, lambda subject: "sm_90a")
