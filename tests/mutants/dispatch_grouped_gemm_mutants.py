"""Mutants of dispatch_grouped_gemm and its short simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from mutant import Mutant

RUNS = "tests/kernels/test_ep_dispatch.py"
FAULTY = ("dispatch", "tail", "long rows", "dispatch of pairs")
TABLES = ("tests/runtime/test_ep_routing.py::test_tables_are_those_of_an_enumeration",)
SCATTERED = "tests/kernels/test_ep_scatter_indices.py"
RECIPES = {"sm_90a": "fp8xfp8", "sm_100a": "fp8xfp4"}
PAIR_RUNS = "tests/kernels/test_ep_pairs.py"
UNSCALED_RUNS = "tests/kernels/test_ep_unscaled.py"
mutant = partial(Mutant, archs=("sm_90a",))
of_pairs = partial(Mutant, archs=("sm_100a",))
unscaled = partial(Mutant, nearest=(f"{UNSCALED_RUNS}::test_two_ranks", f"{UNSCALED_RUNS}::test_rows_of_more_chunks_than_slots"), archs=())
stored_once = partial(Mutant, nearest=(f"{RUNS}::test_a_token_stored_once",), archs=())
trained = partial(Mutant, nearest=("tests/kernels/test_ep_training.py::test_an_activation_of_the_kernels_is_near",), archs=())

MUTANTS = (
    mutant("scales of a saved token go to its first row only", "wrong base", "store_scales", "lowest_bit(mask)", "lowest_bit(places.mask)"),
    mutant(
        "a task has the pairs of those after it",
        "off by one",
        "fetch_tokens",
        'minimum(load_u32(ctx.at("recv_pairs", source)) - first, config.task_tokens)',
        'load_u32(ctx.at("recv_pairs", source)) - first',
    ),
    mutant(
        "the last task of a rank is left out",
        "off by one",
        "count_tasks",
        "ceil_div(warp_max_u32(pairs), ctx.config.task_tokens)",
        "div(warp_max_u32(pairs), ctx.config.task_tokens)",
    ),
    mutant("the ranks of a turn end one late", "off by one", "fetch_tokens", "source >= ranks", "source > ranks"),
    mutant(
        "counters of the next launch keep what an earlier one counted",
        "missing clean-up",
        "dispatch",
        'clear_counters(ctx, group, "arrivals", ctx.config.num_arrivals)',
        "",
    ),
    mutant("rows are counted where every launch but the first does not look", "wrong phase", "count_row", "ctx.epoch & 1", "0"),
    mutant(
        "a tile waits for as many rows of its expert as it has",
        "wrong number",
        "wait_rows",
        'load_u32(ctx.at("expert_rows", tile.group))',
        "tile.valid_m",
        (f"{RUNS}::test_one_rank_with_several_tiles_of_an_expert[False]",),
    ),
    mutant(
        "a row is counted before it is written",
        "missing order",
        "count_row",
        'wait_group(0)\nreduce_add_u32(ctx.at("arrivals", ctx.epoch & 1, moved.counter), 1, "release", "gpu")',
        'reduce_add_u32(ctx.at("arrivals", ctx.epoch & 1, moved.counter), 1, "release", "gpu")',
    ),
    mutant(
        "a row is counted without release",
        "missing order",
        "count_row",
        'reduce_add_u32(ctx.at("arrivals", ctx.epoch & 1, moved.counter), 1, "release", "gpu")',
        'reduce_add_u32(ctx.at("arrivals", ctx.epoch & 1, moved.counter), 1, "relaxed", "gpu")',
    ),
    mutant(
        "inputs of other ranks are not waited for",
        "missing order",
        "dispatch",
        "await_ranks(ctx, group, EpBarrier.INPUTS, ctx.epoch + 1)",
        "",
        (f"{RUNS}::test_a_rank_that_stays_away_is_named",),
    ),
    mutant(
        "a tile waits for its first row",
        "off by one",
        "wait_rows",
        "counter_of(ctx, tile.group, tile.row), tile.valid_m",
        "counter_of(ctx, tile.group, tile.row), Int32(1)",
    ),
    mutant("scales of rows are fetched without a proxy fence", "missing order", "wait_rows", "fence_async_global()", ""),
    mutant("experts follow one another without padding", "wrong base", "halves.scheduler:fill_table", "padded_rows", "lambda rows: rows"),
    mutant("the last row of a warp is not counted", "off by one", "fetch_all", "count_row(ctx, moved)", ""),
    mutant("a row is loaded into slots that are still read", "missing order", "fetch_token", "wait_group_read(0)", ""),
    mutant("the results of a saved token all go to its first slot", "wrong base", "fetch_token", "token * problem.topk + lane", "pair"),
    mutant("tasks go on from those of the launch before", "missing clean-up", "end_launch", 'store_u32(ctx.at("task_counter"), 0)', ""),
    stored_once("tail warps count from the first SM", "wrong base", "copy_rows", "ctx.sm - config.fetching_sms", "ctx.sm"),
    stored_once(
        "rows of a tail warp are as far apart as all warps are many",
        "wrong base",
        "copy_rows",
        "config.tail_sms * COMMUNICATION_WARPS",
        "ctx.num_sms * COMMUNICATION_WARPS",
    ),
    stored_once("rows are counted before they are copied", "missing order", "copy_group", "wait_group(0)", ""),
    stored_once("tail warps take what the launch before has stored", "wrong phase", "copy_group", "ctx.epoch + 1", "ctx.epoch"),
    stored_once("tail warps copy a row from itself", "wrong base", "copy_group", "shuffle(source, index)", "first + index"),
    stored_once("groups of rows go on without padding", "wrong base", "advance_to", "padded_rows(groups.rows)", "groups.rows"),
    stored_once(
        "the last group of an expert is left out", "off by one", "RowGroups.behind", "ceil_div(self.rows, LANES)", "div(self.rows, LANES)"
    ),
    stored_once(
        "each row is said to have its own token",
        "wrong base",
        "fetch_token",
        'store_u32(ctx.at("sources", places.rows), first)',
        'store_u32(ctx.at("sources", places.rows), places.rows)',
    ),
    stored_once(
        "a row is counted before another lane has stored it", "missing order", "count_row", "wait_group(0); sync_warp()", "wait_group(0)"
    ),
    trained(
        "every row has the top-k weight of its token's first slot",
        "wrong base",
        "fetch_token",
        'load_u32(ctx.at_peer(peer, "topk_weights", token, minimum(lane, problem.topk - 1)))',
        'load_u32(ctx.at_peer(peer, "topk_weights", token, 0))',
    ),
    unscaled("turns of a slot are counted as rows are", "wrong phase", "move_row", "uses * turns + turn", "uses"),
    unscaled(
        "a row of two bytes a value has chunks of a byte a value",
        "wrong number",
        "chunks_of",
        "problem.formats.activations.row_bytes(problem.hidden)",
        "problem.hidden",
    ),
    unscaled(
        "rows that no scales go with are as long as those of a byte a value",
        "wrong number",
        "rows_field",
        "form.row_bytes(channels)",
        "channels",
    ),
    mutant(
        "a wgmma has more sums than a thread has registers when its role begins",
        "wrong number",
        "MOST_COLUMNS",
        "128",
        "256",
        ("tests/kernels/test_ep_resources.py::test_kernel_in_bf16_fits_the_chip",),
        archs=(),
    ),
    mutant(
        "both CTAs of a pair hand out tiles",
        "wrong base",
        "schedule_tiles",
        "gemm.cta_rank == 0",
        "gemm.cta_rank >= 0",
        (f"{RUNS}::test_two_ranks",),
    ),
    of_pairs("scales of rows lie in the order of rows", "wrong base", "PAIRS", "scale_row=utccp_row", "scale_row=lambda row: row"),
    of_pairs(
        "a pair's rows are not waited for",
        "missing order",
        "load_tokens",
        "tiles.load_tokens(ctx, ctx.first_stage, fill, lambda ctx, tile: ctx.wait_rows(tile))",
        "tiles.load_tokens(ctx, ctx.first_stage, fill, lambda ctx, tile: None)",
    ),
    of_pairs(
        "a tile of few rows waits for them alone",
        "missing order",
        "DispatchGemmConfig.check_fields",
        "self.block_m == atom or not (self.block_wise and p.formats.scaled)",
        "True",
        (f"{PAIR_RUNS}::test_a_tile_of_few_rows_waits_for_its_expert",),
    ),
    of_pairs(
        "a tile has rows of the next expert",
        "off by one",
        "DispatchGemmConfig.check_fields",
        "self.block_m <= atom",
        "self.block_m <= 2 * atom",
        (f"{PAIR_RUNS}::test_bad_fields_are_named",),
    ),
    of_pairs(
        "scales of weights are read as checkpoints have them",
        "wrong base",
        "kernel_scales",
        "sf if sf.dtype == torch.float32 else scale_words(sf)",
        "sf",
    ),
    mutant(
        "dropped pairs take a row",
        "off by one",
        "RoutingTables.of",
        "expert < problem.num_experts",
        "expert <= problem.num_experts",
        TABLES,
        archs=(),
    ),
    mutant(
        "rows of lower ranks are not counted",
        "wrong base",
        "RoutingTables.of",
        "next_row[expert] += 1",
        "next_row[expert] += not rank",
        TABLES,
        archs=(),
    ),
    mutant(
        "rows of a caller begin at those of the lowest expert",
        "wrong base",
        "scattered_rows",
        "first[expert]",
        "first.amin()",
        (f"{SCATTERED}::test_without_keys_rows_are_those_of_the_tables",),
        archs=(),
    ),
    mutant(
        "a caller's pair may have the row after its expert's",
        "off by one",
        "_name_pair",
        "0 <= place < counts[expert]",
        "0 <= place <= counts[expert]",
        (f"{SCATTERED}::test_bad_indices_are_named",),
        archs=(),
    ),
    mutant(
        "keys sort all tokens of a rank, whichever expert they have",
        "wrong base",
        "scatter_indices",
        "found[by_key] = places.view(expert.shape)",
        "found[:] = places.view(expert.shape)",
        (f"{SCATTERED}::test_tokens_are_in_the_order_of_their_keys",),
        archs=(),
    ),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: three launches, then one without a pair."""
    from ep_runs import check_dispatch, problem, sign_of, simulated, small_config

    from megamoe_dsl.cases import random_case

    moe = problem(9, num_experts=4, hidden=256, recipe=RECIPES[arch])
    case, nothing = random_case(moe, (9, 6), 0, mask=0.1), random_case(moe, (2, 0), 0, mask=1.0)

    def check() -> None:
        ep = simulated(small_config(moe), case, watchdog_ns=1_000_000)
        check_dispatch(ep, case, launches=3)
        check_dispatch(ep, nothing)

    return sign_of(check)


def ptx_faults(subjects: tuple[str, ...] = FAULTY) -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Faults of the compiled PTX: architecture, name, and what runs the faulty kernel and says how the fault shows."""
    from fault_trial import trials
    from test_ep_faults import CASES, how_noticed

    return trials([one for one in CASES if one[1] in subjects], how_noticed, lambda subject: "sm_100a" if "pairs" in subject else "sm_90a")
