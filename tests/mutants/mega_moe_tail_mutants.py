"""Mutants of what comes after the tiles, of waits, and of arithmetic: combine, clean-up, barriers, casts."""

from __future__ import annotations

from mutant import Mutant

SM90_RUNS = "tests/kernels/test_sm90_end_to_end.py"
SM100_RUNS = "tests/kernels/test_end_to_end.py"
CASTS = "tests/kernels/test_cast.py"
TAIL = (
    # --- combine
    Mutant(
        "the next loads of combine start before the piece is summed, one set of slots",
        "stale buffer",
        "combine_pieces",
        "finish_piece(ctx, warp, lane, piece, sums.index, weight); sums = sums.next()\n"
        "if cutlass.const_expr(plan.sets == 1): following = start_loads(ctx, warp, lane, piece.index + step, end, loads)",
        "if cutlass.const_expr(plan.sets == 1): following = start_loads(ctx, warp, lane, piece.index + step, end, loads)\n"
        "finish_piece(ctx, warp, lane, piece, sums.index, weight); sums = sums.next()",
        (f"{SM90_RUNS}::test_top_k_that_leaves_room_for_one_piece", f"{SM100_RUNS}::test_top_k_that_leaves_room_for_one_piece"),
    ),
    Mutant(
        "offsets of y in 32 bits",
        "too narrow",
        "piece_address",
        "Int64(index) * num_bytes",
        "Int64(index * num_bytes)",
        ("tests/kernels/test_addresses.py::test_a_piece_of_y_beyond_two_gibibytes",),
    ),
    Mutant(
        "the slot that leaves is written before the last store has read it",
        "stale buffer",
        "store_sum",
        "if lane == 0: wait_group_read(0)",
        "",
    ),
    Mutant(
        "combine waits for the first phase of its barriers for ever",
        "wrong phase",
        "combine_pieces",
        'wait(ctx.barrier("combine", warp * plan.sets + sums.index), sums.phase)',
        'wait(ctx.barrier("combine", warp * plan.sets + sums.index), Int32(0))',
    ),
    Mutant(
        "combine reads rows that other ranks wrote without a proxy fence", "missing order", "combine_tokens", "fence_async_global()", ""
    ),
    Mutant(
        "a piece of a token begins at the token",
        "wrong base",
        "start_loads",
        "start = Int64(index - token * plan.pieces) * plan.part_bytes\nfor slot in cutlass.range_constexpr(problem.topk): ...",
        "start = Int64(0) * plan.part_bytes\nfor slot in cutlass.range_constexpr(problem.topk): ...",
        ("tests/kernels/test_sm90_end_to_end.py::test_more_k_blocks_than_lanes[8-4352-128]",),
    ),
    # --- clean-up
    Mutant(
        "only 128 experts' send counts are cleared",
        "too narrow",
        "clean_workspace",
        "cutlass.range(group.thread, problem.num_experts, group.size, unroll=1)",
        "cutlass.range(group.thread, min(problem.num_experts, 128), group.size, unroll=1)",
        (f"{SM90_RUNS}::test_more_than_128_experts",),
    ),
    Mutant(
        "arrival bits of Linear2 are not cleared",
        "missing clean-up",
        "clean_expert",
        'store_u64(ctx.at("fc2_arrival", pool_block + block), Int64(0))',
        "",
    ),
    Mutant(
        "the counter of tiles is not cleared",
        "missing clean-up",
        "clean_workspace",
        'store_u32(ctx.at("tile_counter"), 0)',
        "",
        archs=("sm_90a",),
    ),
    Mutant(
        "arrivals of an expert's last block, if partial, are not cleared",
        "missing clean-up",
        "clean_expert",
        "ceil_div(tokens, ctx.config.block_m)",
        "tokens // ctx.config.block_m",
    ),
    Mutant(
        "tokens seen are not carried to the next launch",
        "missing clean-up",
        "clean_expert",
        "Int64(ctx.config.problem.num_ranks << 32) + Int64(tokens)",
        "Int64(ctx.config.problem.num_ranks << 32)",
    ),
    # --- waits and signals
    Mutant(
        "a 32-bit arrival compared with >=",
        "too narrow",
        "Equals32.met",
        "value == self.target",
        "value >= self.target",
        (f"{SM90_RUNS}::test_counters_that_wrap[sign of ranks]",),
    ),
    Mutant(
        "counts of ranks compared with >=",
        "too narrow",
        "HighWordGrewBy.met",
        "Int32(Int64(value) >> 32) == self.target",
        "Int32(Int64(value) >> 32) >= self.target",
        (f"{SM90_RUNS}::test_counters_that_wrap[sign of ranks]",),
        equivalent="What is compared is growth since the launch before, not the counter, so nothing wraps. It cannot exceed the number of "
        "ranks either: a rank adds again in its next launch only, which begins when every CTA of every rank has arrived at "
        "BEFORE_COMBINE, and a CTA arrives there after its scheduler warp has read the counts.",
    ),
    Mutant(
        "counts of other ranks acquired at GPU scope",
        "wrong scope",
        "HighWordGrewBy.read",
        'load_acquire_u64(self.address, "sys")',
        'load_acquire_u64(self.address, "gpu")',
    ),
    Mutant(
        "arrival bits acquired at CTA scope",
        "wrong scope",
        "Equals64.read",
        "load_acquire_u64(self.address, self.scope)",
        'load_acquire_u64(self.address, "cta")',
    ),
    Mutant(
        "a rank's arrival released at GPU scope",
        "wrong scope",
        "signal",
        'reduce_add_u32(ctx.at_peer(peer, "rank_signal", int(which)), 1, "release", "sys")',
        'reduce_add_u32(ctx.at_peer(peer, "rank_signal", int(which)), 1, "release", "gpu")',
    ),
    Mutant("a CTA arrives at a rank barrier before its warps have", "missing order", "arrive", "group.sync()", ""),
    Mutant("rings keep their phase where they wrap", "wrong phase", "Ring.next", "select(wraps, self.phase ^ 1, self.phase)", "self.phase"),
    Mutant("loaders wait for the other phase of a stage", "wrong phase", "Stage.wait_empty", "self.ring.phase ^ 1", "self.ring.phase"),
    # --- arithmetic
    Mutant(
        "the exponent's error is not carried into the exact SiLU",
        "wrong number",
        "times_sigmoid",
        "Float32(LN2)",
        "Float32(0.0)",
        (f"{CASTS}::test_exact_silu_carries_the_rounding_error_of_its_exponent",),
    ),
    Mutant(
        "the exact SiLU of a gate far below zero is NaN",
        "wrong number",
        "times_sigmoid",
        r'corrected = "{{\n\t.reg .pred p;\n\t.reg .f32 c;\n\tfma.rn.f32 c, {1}, {2}, {1};\n\tsetp.nan.f32 p, c, c;'
        r'\n\tselp.f32 {0}, {1}, c, p;\n\t}}"',
        r'corrected = "{{\n\t.reg .pred p;\n\t.reg .f32 c;\n\tfma.rn.f32 c, {1}, {2}, {1};\n\tsetp.nan.f32 p, c, c;'
        r'\n\tselp.f32 {0}, c, c, p;\n\t}}"',
        (f"{CASTS}::test_silu_of_gates_far_from_zero",),
    ),
    Mutant(
        "a scale one too high for a maximum of exactly 448 x 2^n",
        "off by one",
        "scale_exponent",
        "Uint32(0x7FFFFF)",
        "Uint32(0x800000)",
        (f"{CASTS}::test_scale_exponent_is_the_smallest_that_holds_the_maximum",),
    ),
    Mutant("maxima over a column leave out four of its eight threads", "wrong number", "max_over_rows", "(4, 8, 16)", "(4, 8)"),
    Mutant(
        "up is not clamped from below",
        "wrong number",
        "activate_bf16",
        "cast.clamp_below_bf16(cast.clamp_above_bf16(up_pair, form.clamp), -form.clamp)",
        "cast.clamp_above_bf16(up_pair, form.clamp)",
        (
            "tests/kernels/test_sm90_numerics.py::test_other_combinations_of_clamp_and_silu",
            "tests/kernels/test_numerics.py::test_activation_clamp",
        ),
    ),
)
