"""Mutants of what dispatch does: counts exchanged, tokens pulled, tables filled."""

from __future__ import annotations

from mutant import Mutant

SM90_RUNS = "tests/kernels/test_sm90_end_to_end.py"
SM100_RUNS = "tests/kernels/test_end_to_end.py"

DISPATCH = (
    # --- counts
    Mutant(
        "SM 0 tells alone one slot more than its loop covers",
        "off by one",
        "exchange_counts",
        "num_slots(ctx) <= ALONE",
        "num_slots(ctx) <= ALONE + 1",
        (f"{SM90_RUNS}::test_one_slot_more_than_sm_0_tells_alone",),
    ),
    Mutant(
        "only the first 128 experts are counted",
        "too narrow",
        "own_experts",
        "range(0, experts, group.size)",
        "range(0, group.size, group.size)",
        (f"{SM90_RUNS}::test_more_than_128_experts", f"{SM100_RUNS}::test_more_than_128_experts"),
    ),
    Mutant(
        "indices go to the expert's number of all, not of its rank",
        "wrong base",
        "send_index",
        "expert - owner * ctx.config.problem.experts_per_rank",
        "expert",
    ),
    Mutant(
        "indices lie at the first slot of the reader's rank, not of the writer's",
        "wrong base",
        "send_index",
        'ctx.at_peer(ctx.peer(owner), "src_token_topk_idx", local, ctx.args.rank, slot)',
        'ctx.at_peer(ctx.peer(owner), "src_token_topk_idx", local, owner, slot)',
    ),
    Mutant(
        "every CTA takes an expert's slots from the first one on",
        "wrong base",
        "reserve_slots_for",
        'atomic_add_u32(ctx.at("expert_send_count", expert), tokens)',
        'atomic_add_u32(ctx.at("expert_send_count", expert), tokens) * 0',
    ),
    Mutant(
        "counts are signalled before they and the indices are visible",
        "missing order",
        "send_counts",
        "if cutlass.const_expr(not signal): fence_sys()",
        "",
    ),
    Mutant(
        "a barrier that nobody waits for does not count",
        "missing clean-up",
        "exchange_counts",
        "arrive_no_wait(ctx, group, RankBarrier.BEFORE_PULL)",
        "",
    ),
    Mutant("SMEM counters are read before all threads have counted", "missing order", "exchange_counts_alone", "group.sync()", ""),
    Mutant(
        "the first index beyond the experts names one",
        "off by one",
        "expert_of",
        "index < ctx.config.problem.num_experts",
        "index <= ctx.config.problem.num_experts",
        (f"{SM90_RUNS}::test_what_names_no_expert_is_masked[9]", f"{SM100_RUNS}::test_what_names_no_expert_is_masked"),
    ),
    # --- tables
    Mutant("an expert's tokens start after its own blocks", "wrong base", "fill_shared_table", "first + upto - taken", "first + upto"),
    Mutant(
        "the second 32 local experts start at the pool's first block",
        "wrong base",
        "fill_shared_table",
        "first = first + shuffle(upto, 31)",
        "",
        (f"{SM90_RUNS}::test_more_than_a_warp_of_local_experts[40]", f"{SM100_RUNS}::test_more_than_a_warp_of_local_experts[40]"),
    ),
    Mutant("a role walks the blocks before the table is there", "missing order", "start_walk", 'wait(ctx.barrier("counts"), Int32(0))', ""),
    # --- pull
    Mutant(
        "the turns of a pull slot rounded down",
        "wrong phase",
        "move_row",
        "len(range(slot, chunks, plan.pull_slots))",
        "chunks // plan.pull_slots",
        (f"{SM90_RUNS}::test_more_k_blocks_than_lanes[8-4352-128]",),
    ),
    Mutant(
        "a pull slot is refilled before its store has read it",
        "stale buffer",
        "move_row",
        "if lane == 0: wait_group_read(0)\nsync_warp()",
        "",
        (f"{SM90_RUNS}::test_more_k_blocks_than_lanes[8-4352-128]",),
    ),
    Mutant(
        "only 32 words of a token's scales are copied",
        "too narrow",
        "pull_token",
        "range(0, words, 32)",
        "range(0, 32, 32)",
        (f"{SM100_RUNS}::test_more_than_a_warp_or_a_word_holds[34 scale words a row]",),
    ),
    Mutant("a token is said to be there before its row is", "missing order", "pull_token", "wait_group(0)", ""),
    Mutant("a rank's tokens start anew at each turn of the peeling", "wrong base", "choose_source", "taken + row", "row"),
    Mutant(
        "scales of an expert's second block lie where its first block's do",
        "wrong base",
        "pull_token",
        "config.sf_row(pool_block, cursor.index - m_block * config.block_m)",
        "config.sf_row(pool_block - m_block, cursor.index - m_block * config.block_m)",
    ),
    Mutant(
        "a token has the weight of its first slot",
        "wrong base",
        "pull_token",
        'ctx.at_peer(peer, "topk_weights", 0, token_topk)',
        'ctx.at_peer(peer, "topk_weights", 0, token * problem.topk)',
    ),
    Mutant(
        "the warp barrier after a token is dropped",
        "missing order",
        "pull_token",
        "if lane == 0: ...\nsync_warp()",
        "if lane == 0: ...",
        ("tests/kernels/test_lanes.py::test_a_launch_is_right_with[another leader-sm90]",),
    ),
)
