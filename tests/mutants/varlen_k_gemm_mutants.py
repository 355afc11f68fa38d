"""Mutants of the varlen_k_gemm family and of what else a backward pass has; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

FILE = "tests/kernels/test_gradient_gemms.py::"
SUMS = (f"{FILE}test_sums_over_rows_are_the_tensor_cores[left]", f"{FILE}test_sums_over_rows_are_the_tensor_cores[right-f32]")
TRANSPOSED = (f"{FILE}test_sums_over_rows_are_the_tensor_cores[right]",)
TAILS = (f"{FILE}test_any_number_of_rows[counts1-left]",)
SOURCES = (f"{FILE}test_sources_that_are_not_there_are_those_that_are",)
WEIGHTS = (f"{FILE}test_a_transposed_b",)
GRADIENT = (f"{FILE}test_gradients_of_gate_and_up[silu-up_first-128]", f"{FILE}test_gradients_of_gate_and_up[swigluoai-interleaved-256]")
WEIGHTED = """for i in cutlass.range_constexpr(len(weighted)):
    store_b16(box.chunk_place(me.lane & 7, WORDS * i + (me.lane >> 3)), weighted[i])"""
IN_FP8 = tuple(f"{FILE}test_sums_over_rows_are_the_tensor_cores[{name}]" for name in ("fp8", "fp8-f32-pairs"))
COPY = 'load_tile_cta(stage.shared("sfb"), self.scales, full, self.row, k)'
PAIR_FILE = "tests/kernels/test_gradient_gemms_sm100.py::"
PAIR_SUMS = (f"{PAIR_FILE}test_sums_over_rows_are_those_of_groups[right]",)
PAIR_TAILS = (f"{PAIR_FILE}test_any_number_of_rows[counts0-left]",)
PAIR_WEIGHTS = (f"{PAIR_FILE}test_a_transposed_b[416-192-True]",)
PAIR_GRADIENT = tuple(f"{PAIR_FILE}test_gradients_of_gate_and_up[{name}]" for name in ("silu-up_first-64", "swigluoai-interleaved-128"))
PAIR_IN_MXFP8 = (f"{PAIR_FILE}test_sums_over_rows_are_those_of_groups[mxfp8]",)
mutant = partial(Mutant, nearest=SUMS, archs=())
in_fp8 = partial(Mutant, nearest=IN_FP8, archs=())

MUTANTS = (
    mutant("a group without rows has no stage", "wrong number", "GemmContext.k_blocks_of", "Int32(1)", "Int32(0)"),
    mutant("a lane's row is the first warp's", "wrong base", "gather_columns", "(lane // 2) * 4 + number * 2", "(lane // 2) * 4"),
    mutant("a stage has the sources of the one before", "off by one", "gather_columns", "(k + 1) * K_ROWS", "k * K_ROWS"),
    mutant("chunks of a row of K lie in its order", "wrong base", "copy_chunk", "SW128.chunk(chunk, row)", "chunk * VECTOR"),
    mutant("gathered rows beyond a group's count", "off by one", "gather_stage", "row < left", "row <= left", nearest=TAILS),
    mutant("a last stage of few gathered rows is left out", "wrong number", "gather_columns", "left != 0", "left > 32", nearest=TAILS),
    mutant("sorted rows beyond a group's count", "off by one", "copy_rows", "whole + row < rows", "whole + row <= rows", nearest=TAILS),
    mutant(
        "a last stage of few rows is left out", "wrong number", "load_columns", "rows % K_ROWS != 0", "rows % K_ROWS > 32", nearest=TAILS
    ),
    mutant(
        "sources are not looked at for the next group", "wrong base", "listed_in", "first + minimum(number, rows)", "minimum(number, rows)"
    ),
    mutant(
        "boxes lie at once in one place", "wrong base", "ColumnTile.load", "destination + box * BOX_BYTES", "destination", nearest=WEIGHTS
    ),
    mutant(
        "columns of a box follow one another at once",
        "wrong base",
        "transposed_tile",
        "ctx.config.problem.k",
        "ctx.config.problem.n",
        nearest=WEIGHTS,
    ),
    mutant("rows of K are rows of B", "wrong base", "ColumnTile.load", "self.row + k * K_ROWS", "self.row + k", nearest=WEIGHTS),
    mutant("a box is written while TMA reads it", "missing order", "add_sums", "wait_group_read(buffers - 1)", "", nearest=(SUMS[1],)),
    mutant("TMA reads a box before it sees it", "missing order", "add_sums", "fence_async_shared()", "", nearest=(SUMS[1],)),
    mutant(
        "rows of D are the next group's",
        "off by one",
        "finish_transposed",
        "problem.tile_columns - before",
        "problem.tile_columns",
        nearest=TRANSPOSED,
    ),
    mutant("the sigmoid's derivative is forgotten", "wrong number", "gradients", "Float32(1.0) - s", "s", nearest=GRADIENT),
    mutant("clamped gates have a gradient", "off by one", "gradients", "gate <= limit", "gate <= gate", nearest=(GRADIENT[1],)),
    mutant(
        "gate and up change places",
        "wrong base",
        "GateUpBox.offset",
        "self.order == UP_FIRST",
        "self.order != UP_FIRST",
        nearest=(GRADIENT[0],),
    ),
    mutant(
        "a row's weight is applied twice",
        "wrong number",
        "channels",
        "dots[h] + one * value",
        "dots[h] + one * weight * value",
        nearest=GRADIENT,
    ),
    mutant(
        "a box's second half has its first half's sums",
        "wrong base",
        "finish_gradient",
        "16 * (first + i)",
        "16 * first",
        nearest=GRADIENT,
    ),
    mutant(
        "gate and up of the next box are the last one's",
        "off by one",
        "finish_gradient",
        "box_of(ctx, tile, me, number + epilogue.buffers)",
        "box_of(ctx, tile, me, number)",
        nearest=GRADIENT,
    ),
    mutant(
        "rows 8 further have the first rows' sums",
        "wrong base",
        "finish_gradient",
        "4 * word + 2 * box.half + e",
        "4 * word + e",
        nearest=GRADIENT,
    ),
    mutant(
        "a box is read before it has come",
        "missing order",
        "finish_gradient",
        "wait_copies(min(epilogue.buffers, boxes - number) - 1)",
        "wait_copies(min(epilogue.buffers, boxes - number))",
        nearest=GRADIENT,
    ),
    mutant(
        "weighted products are staged while others read gradients",
        "missing order",
        "finish_gradient",
        f"sync_warp()\n{WEIGHTED}",
        WEIGHTED,
        nearest=GRADIENT,
    ),
    in_fp8(
        "a group without rows sums the next one's",
        "wrong base",
        "GemmContext.first_k_block_of",
        "select(Int32(rows) > 0, Int32(first), self.args.m)",
        "Int32(first)",
    ),
    in_fp8("every group's rows begin at the first", "wrong base", "fill_tokens", "ctx.first_k_block_of(tile)", "ctx.first_k_block"),
    in_fp8("rows of a tile are another group's", "wrong base", "GemmContext.source_row", "tile.group * self.config.problem.tile_rows", "0"),
    in_fp8("columns have the scales of the first tile", "wrong base", "ScaledRows.load_scales", COPY, COPY.replace("self.row", "0")),
    in_fp8("scales of columns are the next K block's", "off by one", "ScaledRows.load_scales", COPY, COPY.replace("k)", "k + 1)")),
    in_fp8(
        "both columns of a pair have one scale",
        "wrong number",
        "ColumnScaledShare.promote",
        "scales[i // 4][i % 2]",
        "scales[i // 4][0]",
    ),
    in_fp8(
        "rows 8 further have the first row's scale",
        "wrong number",
        "ColumnScaledShare.promote",
        "token_scales[i // 2 % 2]",
        "token_scales[0]",
    ),
    mutant(
        "two of a quad's parts are added",
        "wrong number",
        "store_dots",
        "cutlass.range_constexpr(1, 3)",
        "cutlass.range_constexpr(1, 2)",
        nearest=GRADIENT,
    ),
    *(
        Mutant(f"SM100: {name}", *change, nearest=nearest, archs=())
        for name, change, nearest in (
            (
                "a last stage has rows of the next group",
                ("too narrow", "Side.place", "select(number < rows, first + number, ctx.args.m)", "first + number"),
                PAIR_TAILS,
            ),
            (
                "both CTAs have the first half of the left side's columns",
                ("wrong base", "load_left", "ctx.cta_rank * (mma_tokens(tile.valid_m) >> 1)", "0 * (mma_tokens(tile.valid_m) >> 1)"),
                PAIR_SUMS,
            ),
            ("the next rows of K are the next columns", ("wrong base", "operand", "step * COLUMNS_STEP", "step * K_STEP"), PAIR_WEIGHTS),
            (
                "the next 64 columns are the first",
                ("wrong number", "operand", "step * COLUMNS_STEP + COLUMNS_LOW", "step * COLUMNS_STEP"),
                PAIR_SUMS,
            ),
            (
                "every stage has the first rows of K",
                ("wrong base", "TransposedOperand.load_rows", "self.row + k * K_ROWS", "self.row"),
                PAIR_WEIGHTS,
            ),
            (
                "all channels of a lane have the first two's sums",
                ("wrong base", "eight_channels", "raw[2 * i : 2 * i + 2]", "raw[:2]"),
                PAIR_GRADIENT,
            ),
            (
                "sums are read as if rows lay alike",
                ("wrong base", "sm100.gradient:finish_rows", "part.warp << 5", "part.warp << 7"),
                PAIR_GRADIENT,
            ),
            (
                "MXFP8: the left side of every group is the first's",
                ("wrong base", "gemm.sm100.load:load_tokens", "ctx.first_k_block_of(tile)", "0"),
                PAIR_IN_MXFP8,
            ),
            (
                "MXFP8: the first rows' scales stand for all rows",
                ("wrong base", "gemm.sm100.load:load_tokens", "begin & -SF_ATOM_ROWS", "0"),
                PAIR_IN_MXFP8,
            ),
            (
                "MXFP8: the right side of every group is the first's",
                ("wrong base", "summed_weights", "ctx.first_k_block_of(tile)", "0"),
                PAIR_IN_MXFP8,
            ),
            ("half of a row's parts are added", ("wrong number", "sm100.gradient:finish_rows", "(1, 2, 4, 8)", "(1, 2, 4)"), PAIR_GRADIENT),
            (
                "gradients of up come where gate is",
                ("wrong order", "addresses", "problem.gradient == UP_FIRST", "problem.gradient != UP_FIRST"),
                PAIR_GRADIENT[:1],
            ),
        )
    ),
)
