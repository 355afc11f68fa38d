"""Mutants of the gather_gemm family, and its short simulation; its faults of PTX are among gemm's."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

RUNS = ("tests/kernels/test_gather_gemm.py::test_every_row_is_exact",)
ACTIVATED = ("tests/kernels/test_gather_gemm.py::test_gate_and_up_are_activated_and_quantized",)
PAIRS = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact",)
PAIR_ACTIVATED = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantized",)
PART_OF = "gemm.sm100.epilogue:part_of"
CONSUMERS = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact[two-consumers]",)
TWO_PAIRS = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact[two-pairs-sorted]",)
TWO_PAIRS_GATHER = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantized[two-pairs-gate-first]",)
STORED = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantized[stored-up_first]",)
NVFP4_GATE_UP = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantized[nvfp4-gate_first]",)
NVFP4_SCALED = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantized[nvfp4-scaled-gate_first]",)
NVFP4 = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact[nvfp4]",)
PLAIN = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact[bf16xbf16-gathered-blocked]",)
BIASES = ("tests/kernels/test_expert_layer_biases.py::test_the_launches_give_the_bits_of_the_reference",)
LISTS = ("tests/kernels/test_gather_gemm.py::test_rows_that_are_not_there_are_those_that_are",)
mutant = partial(Mutant, nearest=RUNS, archs=("sm_90a",))


def pair_mutant(name: str, kind: str, where: str, old: str, new: str, nearest: tuple[str, ...] = PAIRS, equivalent: str = "") -> Mutant:
    """One of SM100's files."""
    return Mutant(f"SM100: {name}", kind, where, old, new, nearest, ("sm_100a",), equivalent)


MUTANTS = (
    mutant(
        "gathered rows are read before the tensor core sees them", "missing order", "GatheredStage.wait_full", "fence_async_shared()", ""
    ),
    mutant(
        "rows are gathered past the tile's last",
        "off by one",
        "gather_tile",
        "rows[i] < tile.valid_m",
        "rows[i] <= tile.valid_m",
        equivalent="a row more is fetched and multiplied, of which nothing is stored: 128 bytes for each K block",
    ),
    mutant(
        "blocks of the experts before the last 32 are forgotten",
        "wrong base",
        "place_rows",
        "blocks_before + shuffle(total, LANES - 1)",
        "shuffle(total, LANES - 1)",
    ),
    mutant("the second warp gathers what the first does", "wrong base", "gather_tile", "number * ROWS_PER_COPY", "0 * number"),
    mutant("chunks lie where no swizzle puts them", "wrong base", "gather_tile", "chunk ^ (row & 7)", "chunk"),
    mutant(
        "all K blocks have the scales of the first of four",
        "wrong base",
        "ScaledStage.token_scales",
        'self.plan.address(self.smem, "sfa", place) + self.word_in_place * SCALE_BYTES',
        'self.plan.address(self.smem, "sfa", place)',
    ),
    mutant(
        "scales are copied to where some are still read",
        "wrong number",
        "ListedRows.scale_places",
        "num_stages + self.at_once - 1",
        "num_stages",
    ),
    mutant("scales of a K block that begins none are copied, too", "wrong base", "gather_tile", "stage.word_in_place == 0", "True"),
    mutant("a row of the list may lie past the tokens", "off by one", "source_of", "ctx.args.a_rows - 1", "ctx.args.a_rows", nearest=LISTS),
    mutant("blocks before a run of 32 experts are not counted", "wrong base", "place_rows", "blocks_before + total", "total"),
    mutant(
        "a list is read where D's rows begin",
        "wrong base",
        "GemmContext.source_row",
        "if not self.config.problem.places_rows: return tile.row",
        "if self.config.problem.gathers: return tile.row",
    ),
    mutant(
        "up first is read as gate first",
        "wrong base",
        "gate_and_up",
        "-problem.n // 2 if up_first else problem.n // 2",
        "problem.n // 2",
        nearest=ACTIVATED,
    ),
    mutant(
        "scales of up are those of gate",
        "wrong base",
        "GateUpRows.scale_row",
        "second * (problem.scale_rows // 2)",
        "0 * second",
        nearest=ACTIVATED,
    ),
    mutant(
        "interleaved channels are put in pairs",
        "wrong number",
        "finish_gate_up",
        "transposed if problem.gate_up == INTERLEAVED else joined_pairs",
        "joined_pairs if problem.gate_up == INTERLEAVED else joined_pairs",
        nearest=ACTIVATED,
    ),
    mutant(
        "a row more than a tile has is activated and stored",
        "off by one",
        "finish_gate_up",
        "token < tile.valid_m",
        "token <= tile.valid_m",
        nearest=ACTIVATED,
    ),
    mutant(
        "gate and up of a row more than a tile has are stored",
        "off by one",
        "store_preactivations",
        "token < tile.valid_m",
        "token <= tile.valid_m",
        nearest=ACTIVATED,
    ),
    mutant(
        "up is stored where gate belongs",
        "wrong base",
        "column_of",
        "up == (problem.gate_up == GATE_FIRST)",
        "up != (problem.gate_up == GATE_FIRST)",
        nearest=ACTIVATED,
    ),
    *(
        mutant(*change, nearest=BIASES)
        for change in (
            ("the last K block has chunks of the next row", "off by one", "bytes_of_chunk", "chunk < chunks", "chunk <= chunks"),
            ("gate's last tile is stored over up", "off by one", "has_columns", "problem.n // 2 if first_half else problem.n", "problem.n"),
            ("all experts have the first one's biases", "wrong base", "bias_address", "Int64(tile.group)", "0 * Int64(tile.group)"),
            ("both columns of a thread have the first one's bias", "wrong base", "gemm.store:rows_with_bias", "biases[e]", "biases[0]"),
            ("columns eight further have the bias of these", "wrong base", "columns_with_bias", "biases[i // 2 % 2]", "biases[0]"),
            ("biases are read past the last", "off by one", "bias_address", "problem.n - together", "problem.n"),
        )
    ),
    mutant(
        "gate and up are staged while those before them leave",
        "missing order",
        "store_preactivations",
        "for row in cutlass.range(me.lane // CHUNKS, WARP_ROWS, ROWS_PER_STEP, unroll=1): ...\nsync_warp()",
        "for row in cutlass.range(me.lane // CHUNKS, WARP_ROWS, ROWS_PER_STEP, unroll=1): ...",
        nearest=ACTIVATED,
    ),
    Mutant(
        "a warpgroup without rows of a tile keeps its stages",
        "missing clean-up",
        "leave_out",
        "release_stage(stage, me.lane)",
        "",
        ACTIVATED,
        ("sm_90a",),
    ),
    pair_mutant(
        "a lane gives a list back for its warp, after a warp barrier",
        "missing order",
        "listed_rows",
        "named = [source_of(ctx, Int32(word)) for word in words]\n"
        'scaled = [source_of(ctx, Int32(load_shared_u32(ctx.shared("rows", lists.index, row)))) for row in scaled_rows(ctx, thread)]\n'
        'release(ctx.barrier("list_empty", lists.index), reduce(cutlass.max, [*named, *scaled]))',
        'loaded = [load_shared_u32(ctx.shared("rows", lists.index, row)) for row in scaled_rows(ctx, thread)]\n'
        "cute.arch.sync_warp()\n"
        "if thread % 32 == 0:\n"
        '    for _ in range(32): release(ctx.barrier("list_empty", lists.index), Int32(0))\n'
        "named, scaled = ([source_of(ctx, Int32(word)) for word in those] for those in (words, loaded))",
    ),
    pair_mutant("a list's place is taken twice", "wrong phase", "gather_tokens", "lists = lists.next()", ""),
    pair_mutant("a list is read a row further on", "off by one", "list_rows", "first + row", "first + row + 1"),
    pair_mutant(
        "rows beyond a tile's are read from the list",
        "off by one",
        "list_rows",
        "row < tile.valid_m",
        "row <= tile.valid_m",
        equivalent="a word more is read, of a row that nobody asks for",
    ),
    pair_mutant("both CTAs gather the first half of a tile", "wrong base", "own_half", "ctx.place_in_pair * half", "ctx.place_in_pair * 0"),
    pair_mutant("scales lie in the order of their rows", "wrong base", "bring_tile", "utccp_row(row)", "row"),
    pair_mutant(
        "a tile's scales are those of its place in D", "wrong base", "BroughtRows.row_in_atom", "return 0", "return tile.row & 127"
    ),
    pair_mutant("the MMA warp does not wait for copied scales", "missing order", "CopiedStage.wait_full", "self.wait_copied()", ""),
    pair_mutant("copied scales without proxy fence", "missing order", "CopiedStage.wait_copied", "fence_async_shared()", ""),
    pair_mutant("a row past a tile's last is scattered", "off by one", "scatter_pass", "own + i < tile.valid_m", "own + i <= tile.valid_m"),
    pair_mutant(
        "gate and up in BF16 have no factor",
        "wrong number",
        "GateUpOfTile.activated",
        "with_factor(ctx, one, self.factor)",
        "one",
        NVFP4_GATE_UP,
    ),
    pair_mutant(
        "the second eight rows of a store of gate and up lie on the first",
        "wrong base",
        "Bf16Outputs.store",
        "(matrix >> 1) * (8 * HALF_BYTES)",
        "0",
        NVFP4_GATE_UP,
    ),
    pair_mutant(
        "BF16 gate and up are scattered before all warps have stored theirs",
        "missing order",
        "finish_passes",
        "fence_async_shared(); part.sync_group()",
        "fence_async_shared()",
        NVFP4_GATE_UP,
    ),
    *(
        pair_mutant(*change, NVFP4_SCALED)
        for change in (
            (
                "up with a scale has gate's factor",
                "wrong number",
                "GateUpFactors.of_sums",
                "self.gate if i & 2 == gates else self.up",
                "self.gate",
            ),
            (
                "all experts' gate and up have the first's factor",
                "wrong base",
                "sm100.gate_up:finish_gate_up",
                "args.hidden_factors + place",
                "args.hidden_factors",
            ),
            ("two lanes find one row's scale", "wrong base", "row_of_lane", "(lane >> 2) & 1", "0"),
            (
                "half of a row's channels have no part in its scale",
                "wrong base",
                "largest_of_row",
                "select(upper, left[i], left[half + i])",
                "select(upper, left[half + i], left[i])",
            ),
            ("of two rows both have the first's divisor", "wrong base", "packed_pass", "2 * g + q", "2 * g"),
            (
                "scales lie where warps have others",
                "wrong base",
                "GateUpOfTile.scale",
                "fc1_scale(self.part.n_block, self.part.warp, hidden.channels)",
                "fc1_scale(self.part.n_block, self.part.warp ^ 1, hidden.channels)",
            ),
            (
                "E2M1 with a factor is staged while the pass before is scattered",
                "missing order",
                "GateUpOfTile.buffer",
                "wait_group_read(0)",
                "",
            ),
        )
    ),
    pair_mutant("a pass is staged while the last is scattered", "missing order", "finish_results", "wait_group_read(0)", ""),
    pair_mutant(
        "up first is read as gate first", "wrong base", "first_gate", "2 if problem.gate_up == UP_FIRST else 0", "0", PAIR_ACTIVATED
    ),
    pair_mutant(
        "interleaved rows are taken for halves",
        "wrong base",
        "PairGateUpWeights.rows",
        "self.order == INTERLEAVED",
        "False",
        PAIR_ACTIVATED,
    ),
    pair_mutant(
        "a row more than a tile has gets a scale",
        "off by one",
        "GateUpOfTile.has",
        "row < self.tile.valid_m",
        "row <= self.tile.valid_m",
        PAIR_ACTIVATED,
    ),
    Mutant(
        "SM100: the second consumer multiplies the first's weights",
        "wrong base",
        "multiply",
        "consumer * (BLOCK_N * tile.k_block.row_bytes >> 4)",
        "0 * (BLOCK_N * tile.k_block.row_bytes >> 4)",
        CONSUMERS,
        ("sm_100a",),
    ),
    Mutant(
        "SM100: scales of the second consumer's weights lie in the first's columns",
        "wrong base",
        "copy_word",
        "columns.sfb + 4 * atom",
        "columns.sfb",
        CONSUMERS,
        ("sm_100a",),
    ),
    Mutant(
        "SM100: a stage is empty when one of two pairs has finished",
        "missing order",
        "pair_gemm_barriers",
        'MBarrier("empty", stages, config.pairs, emptied, "", "both loaders")',
        'MBarrier("empty", stages, 1, emptied, "", "both loaders")',
        TWO_PAIRS,
        ("sm_100a",),
    ),
    pair_mutant(
        "both warpgroups store one consumer's sums", "wrong base", PART_OF, "column + me.group * config.block_m", "column", CONSUMERS
    ),
    pair_mutant(
        "both consumers have the same columns of D",
        "wrong base",
        PART_OF,
        "n_block * config.consumers + me.group",
        "n_block * config.consumers",
        CONSUMERS,
    ),
    pair_mutant(
        "two consumers share the passes of one",
        "wrong number",
        PART_OF,
        "n_block * config.consumers + me.group, column + me.group * config.block_m, 1, Int32(0)",
        "n_block * config.consumers + me.group, column + me.group * config.block_m, every, first",
        CONSUMERS,
    ),
    pair_mutant(
        "sums of two tiles take columns of scales",
        "wrong number",
        "Sm100GemmConfig.tmem",
        "two if two.fits else replace(two, accumulators=1)",
        "two",
        CONSUMERS,
    ),
    pair_mutant(
        "both pairs gather the same four rows",
        "wrong base",
        "listed_rows",
        "quad * ctx.config.pairs + (ctx.cta_rank >> 1)",
        "quad * ctx.config.pairs",
        TWO_PAIRS_GATHER,
    ),
    pair_mutant("both pairs bring the same sorted rows", "wrong base", "load_sorted", "first + pair * rows", "first", TWO_PAIRS),
    pair_mutant("sums are announced to the first pair", "wrong base", "GemmContext.own_pair", "self.cta_rank & 2", "0", TWO_PAIRS),
    pair_mutant("rows go to both CTAs of a pair", "wrong base", "GemmContext.same_rows", "1 << CLUSTER", "1 << 1", TWO_PAIRS),
    pair_mutant(
        "a row has a word of scales for 128 of K",
        "wrong base",
        "bring_tile",
        "config.problem.k_words * WORD",
        "config.problem.k_blocks * WORD",
        NVFP4,
    ),
    pair_mutant(
        "a row more than a tile has is stored", "off by one", "store_preactivations", "row < tile.valid_m", "row <= tile.valid_m", STORED
    ),
    pair_mutant(
        "gate and up are read before they are staged",
        "missing order",
        "store_preactivations",
        "part.sync_group(); own = read_row(part.warp, part.lane)",
        "own = read_row(part.warp, part.lane)",
        STORED,
    ),
    pair_mutant(
        "gate and up are stored in each other's columns",
        "wrong base",
        "column_of",
        "select(lane < 8, Int32(0), Int32(problem.n // 2))",
        "select(lane < 8, Int32(problem.n // 2), Int32(0))",
        STORED,
    ),
    *(
        Mutant(f"SM100, BF16: {name}", *change, PLAIN)
        for name, *change in (
            (
                "a stage waits for scales that nobody announces",
                "wrong number",
                "BroughtRows.arrivals",
                "int(self.copies)",
                "1",
            ),
            (
                "tiles wait for a warp that reads none",
                "wrong number",
                "BroughtRows.readers",
                "self.copies + CLUSTER * (GATHER_WARPS - 1 + self.gathers)",
                "1 + CLUSTER * (GATHER_WARPS - 1 + self.gathers)",
            ),
            (
                "half as much of a row is gathered as the stage has",
                "wrong base",
                "bring_tile",
                "gather_rows(place, ctx.maps.tokens, full, k * row_bytes, rows.places, ctas)",
                "gather_rows(place, ctx.maps.tokens, full, k * (row_bytes // 2), rows.places, ctas)",
            ),
        )
    ),
    pair_mutant("sums of 32 experts are those of 31", "off by one", "add_up_tiles", "LANES - 1", "LANES - 2"),
    pair_mutant(
        "the first expert of 32 begins where it ends", "wrong base", "find_expert", "cutlass.select_(within > 0, of_run, first)", "of_run"
    ),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: rows gathered into blocks, race detector on."""
    from test_gemm_faults import how_noticed

    return how_noticed(None, "gathered" if arch == "sm_90a" else "gathered by a pair")
