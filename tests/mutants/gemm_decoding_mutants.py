"""Mutants of what GEMMs of 4-bit weights have for themselves on SM90: parts of packed tiles, and the two rings where warps of their own
decode (mega_moe_packed_mutants.py has those of the blocks that the fused kernel shares)."""

from __future__ import annotations

from mutant import Mutant

CONFIG = "tests/kernels/test_gemm_config.py"


def mutant(name: str, kind: str, where: str, old: str, new: str, *runs: str) -> Mutant:
    """One that GEMMs of 4-bit weights alone run into: `runs` are their cases (gemm_runs.py), or tests."""
    cases = (run if "::" in run else f"tests/kernels/test_gemm_end_to_end.py::test_every_element_is_exact[{run}]" for run in runs)
    return Mutant(name, kind, where, old, new, tuple(cases), ())


DECODING_MUTANTS = (
    # --- parts of packed tiles
    mutant(
        "every group's packed B is the first one's",
        "wrong base",
        "packed_tile",
        "tile.group * lines_of_b",
        "tile.group * 0",
        "fp4-packed",
    ),
    mutant(
        "records of every K block are the first one's",
        "wrong base",
        "PackedLines.load",
        "self.record_row + k * self.tile_rows",
        "self.record_row",
        "fp4-half",
    ),
    mutant(
        "both CTAs of a pair fetch weights of the first half of K",
        "wrong base",
        "load_weights",
        "ctx.first_k_block_of(tile)",
        "Int32(0)",
        "fp4-split-k",
    ),
    mutant(
        "a map of packed tiles ends with the first group",
        "too narrow",
        "PackedWeights.maps",
        "problem.num_groups * lines_of(problem.n, problem.k_blocks)",
        "lines_of(problem.n, problem.k_blocks)",
        "fp4-packed",
    ),
    mutant(
        "packed tiles of B are one K block apart", "wrong base", "PackedPart.first_lines", "k_blocks * TILE_LINES", "TILE_LINES", "fp4-half"
    ),
    mutant(
        "every part of a packed tile has the first one's codes",
        "wrong base",
        "PackedPart.first_lines",
        "tile + place * self.code_lines",
        "tile",
        "fp4-half",
    ),
    mutant(
        "records of a block of 64 rows are counted by blocks",
        "wrong base",
        "PackedPart.first_lines",
        "group * PackedPart(GROUP_ROWS).record_lines",
        "place * PackedPart(GROUP_ROWS).record_lines",
        "fp4-quarter",
    ),
    mutant(
        "every block of 64 rows has the shifts of its group's first",
        "wrong base",
        "PackedPart.block_of_group",
        "GROUP_ROWS // BLOCK_ROWS - 1",
        "0",
        "fp4-quarter",
    ),
    mutant(
        "a group's second block has the first one's powers of two",
        "wrong base",
        "PackedBlock.record",
        "select(self.second, exponents >> 16, exponents)",
        "exponents",
        "fp4-quarter",
    ),
    mutant(
        "the second warpgroup of half a tile reads records behind its own",
        "wrong base",
        "PackedShare.record",
        "self.group if self.part.per_tile == 1 else 0",
        "self.group",
        "fp4-half",
    ),
    mutant(
        "both warpgroups of half a tile have the same block",
        "wrong base",
        "share_of",
        "me.group if config.warpgroups > 1 else part.block_of_group(tile.n_block)",
        "part.block_of_group(tile.n_block)",
        "fp4-half",
    ),
    mutant(
        "a stage has room for codes and none for records",
        "too narrow",
        "PackedWeights.num_bytes",
        "return PackedPart(columns).num_bytes",
        "return PackedPart(columns).code_bytes",
        "fp4-quarter",
    ),
    mutant(
        "nobody writes the table of decoded values",
        "missing order",
        "initialize",
        'decoded = ((SCHEDULER_WARP, lambda ctx: store_table(ctx.shared("decoded"))),) if ctx.config.problem.decodes else ()',
        "decoded = ()",
        "fp4-quarter",
    ),
    # --- warps of their own
    mutant(
        "codes are fetched to where decoded weights lie",
        "wrong base",
        "load_weights",
        "CodeStage.of(ctx.first_stage) if ctx.config.weights.decode_warps else ctx.first_stage",
        "ctx.first_stage",
        "fp4-rows-256",
    ),
    mutant(
        "a decoded stage is full without one of those that fill it",
        "off by one",
        "gemm_barriers",
        "rows.arrivals + weights.arrivals",
        "weights.arrivals",
        "fp4-rows-256",
    ),
    mutant(
        "codes are given back when all but one of the decode warps have read them",
        "off by one",
        "DecodedWeights.barriers",
        'MBarrier("codes_empty", num_stages, self.decode_warps, "every decode warp", "", "weight loader")',
        'MBarrier("codes_empty", num_stages, self.decode_warps - 1, "every decode warp", "", "weight loader")',
        "fp4-rows-256",
    ),
    mutant(
        "decode warps do not count among those that read work tiles",
        "off by one",
        "gemm_barriers",
        "rows.warps + 1 + weights.decode_warps + config.math_warps",
        "rows.warps + 1 + config.math_warps",
        "fp4-rows-256",
    ),
    mutant(
        "both chunks of a tall tile multiply the first one's rows",
        "wrong base",
        "DecodedRows.operands",
        "tokens + chunk * (GROUP_ROWS * ROW_BYTES)",
        "tokens",
        "fp4-rows-256",
    ),
    mutant(
        "both chunks of a tall tile have the first one's scales",
        "wrong base",
        "DecodedRows.promote",
        "token_scales[2 * chunk :]",
        "token_scales",
        "fp4-rows-256",
    ),
    mutant(
        "chunks of a tall tile's warpgroups overlap",
        "wrong base",
        "DecodedRows.first_token",
        "self.group * TOKEN_CHUNKS",
        "self.group",
        "fp4-rows-256",
    ),
    mutant(
        "a tall tile's next stage is multiplied before it is full",
        "missing order",
        "MathThread.multiply",
        "following.wait_full()",
        "",
        "fp4-rows-256",
    ),
    mutant(
        "both chunks of a tall tile store the first one's sums",
        "wrong base",
        "DecodedRows.parts",
        "sums[chunk : chunk + 1]",
        "sums[:1]",
        "fp4-rows-256",
    ),
    # --- which tile
    mutant(
        "tall tiles for rows that are packed, too",
        "too narrow",
        "decoding_tiles",
        "256 if problem.kind in (DENSE, MASKED) else ROW_BLOCK",
        "256",
        f"{CONFIG}::test_many_rows_share_what_is_decoded",
    ),
    mutant(
        "columns of a contiguous problem need not divide its blocks",
        "wrong number",
        "decoding_tiles",
        "problem.kind != CONTIGUOUS or ROW_BLOCK % m == 0",
        "m",
        f"{CONFIG}::test_columns_divide_the_blocks_of_a_contiguous_problem",
    ),
)
