"""Mutants of what 4-bit weights have for themselves on SM90 (fp8xmxfp4): their order, the tables, scales taken apart, the ring of decoded
tiles."""

from __future__ import annotations

from mutant import Mutant

RUNS = "tests/kernels/test_sm90_packed.py"
UP_TO_64, OF_128 = f"{RUNS}::test_random_data_to_the_bit_with_clamp[16]", f"{RUNS}::test_random_data_to_the_bit_with_clamp[128]"
FULL_OF_128 = f"{RUNS}::test_every_tile[128-False]"
IN_PAIRS, COUNTS_CHANGE = f"{RUNS}::test_pairs_share_weights_and_tokens[False]", f"{RUNS}::test_pairs_of_changing_counts"
FAR_APART = f"{RUNS}::test_scales_as_far_apart_as_can_be"
MAGNITUDES = f"{RUNS}::test_rows_of_zeros_and_of_other_magnitudes"
BYTES = ("tests/quant/test_packed_tiles.py::test_a_layers_weights_and_back",)


def mutant(name: str, kind: str, where: str, old: str, new: str, *nearest: str) -> Mutant:
    """One that only tests of the recipe run into."""
    return Mutant(name, kind, where, old, new, nearest, ())


PACKED_MUTANTS = (
    # --- codes
    mutant("the second four values of a word have the first four's signs", "wrong number", "decode", "word << 4", "word", UP_TO_64),
    mutant(
        "the second four values of a word have the first four's selectors",
        "wrong number",
        "decode",
        "selectors >> 16",
        "selectors",
        UP_TO_64,
    ),
    mutant(
        "both blocks of a warpgroup have the codes of the first",
        "wrong base",
        "PackedShare.fragment",
        "self.group * self.blocks + block",
        "self.group * self.blocks",
        UP_TO_64,
    ),
    mutant(
        "signs of both runs of a word change places when weights are packed",
        "wrong base",
        "_arrange_codes",
        "words.flatten(-2) | signs[..., 1, :] | (signs[..., 0, :] << 4)",
        "words.flatten(-2) | signs[..., 0, :] | (signs[..., 1, :] << 4)",
        *BYTES,
    ),
    # --- scales
    mutant(
        "a record's second row has the first row's shifts",
        "wrong base",
        "rows_of_shifts",
        "(shifts >> 4) | (shifts << 28)",
        "shifts",
        UP_TO_64,
    ),
    mutant("every step of K has the first one's shift", "wrong base", "_shift", "0x4440 + step", "0x4440", UP_TO_64),
    mutant("the table is a power of two too low", "wrong number", "store_table", "127 + HIGHEST", "126 + HIGHEST", UP_TO_64),
    mutant(
        "the table has no entry of the last shift", "off by one", "store_table", "lane < SHIFTS", "lane < SHIFTS - 1", f"{FAR_APART}[8]"
    ),
    mutant(
        "a zero's exponent is computed as those of other numbers",
        "wrong number",
        "normal_entry",
        "Uint32(0x01010100)",
        "Uint32(0x01010101)",
        OF_128,
    ),
    mutant(
        "subnormal numbers of a pair's second row are not looked up",
        "too narrow",
        "TINY_BITS",
        "0x44444444",
        "0x40404040",
        f"{FAR_APART}[128-one-word]",
    ),
    mutant(
        "subnormal numbers are looked up where a warp's last word has one",
        "too narrow",
        "decode_stage",
        "tiny | (word & (word << 1))",
        "word & (word << 1)",
        f"{FAR_APART}[128-one-word]",
    ),
    mutant(
        "tokens are scaled without their weight tile's power of two",
        "wrong number",
        "PackedShare.token_scales",
        "one * factor",
        "one",
        f"{RUNS}::test_channels_of_other_magnitudes[8]",
    ),
    mutant(
        "rows eight further have the first rows' powers of two",
        "wrong base",
        "scale_rows",
        "2 * b + i // 2 % 2",
        "2 * b",
        f"{MAGNITUDES}[8]",
    ),
    mutant(
        "rows eight and 64 further change their powers of two",
        "wrong base",
        "DecodedShare.scaled",
        "2 * b + h",
        "b + 2 * h",
        f"{MAGNITUDES}[128]",
    ),
    mutant(
        "both warpgroups of a half tile have the first chunk's powers of two",
        "wrong base",
        "DecodedShare.exponents",
        "self.first_chunk + c",
        "c",
        f"{MAGNITUDES}[128]",
    ),
    mutant(
        "powers of two are read from the stage after a tile's last",
        "stale buffer",
        "DecodedShare.multiply_tile",
        "following.previous()",
        "following",
        f"{MAGNITUDES}[128]",
        OF_128,
    ),
    mutant("powers of two lie by lane, not by row", "wrong base", "send_exponents", "row_of(me.lane)", "me.lane & 7", OF_128),
    mutant(
        "powers of two come with a tile's first stage, not its last", "stale buffer", "decode_tile", "k + 1 == k_blocks", "k == 0", OF_128
    ),
    mutant(
        "tokens that are loaded into registers lie by half rows, not by rows",
        "wrong base",
        "DecodedShare.fragment_place",
        "matrix & 1",
        "matrix >> 1",
        FULL_OF_128,
    ),
    mutant(
        "a loader of tokens and weights loads a tile's first weights twice",
        "off by one",
        "load_both",
        "load.load_weights(codes, weights, select(k + 1 < k_blocks, Int32(1), Int32(0)), k + 1)",
        "load.load_weights(codes, weights, select(k + 1 < k_blocks, Int32(1), Int32(0)), k)",
        OF_128,
    ),
    mutant(
        "places of shifts are rotated the other way when weights are packed",
        "wrong base",
        "_arrange_records",
        "(second >> 4).roll(1, dims=-1)",
        "(second >> 4).roll(-1, dims=-1)",
        *BYTES,
    ),
    # --- order
    mutant(
        "the next stage is decoded before it is full",
        "missing order",
        "multiply_stage",
        "following.wait_full(); ahead = Ahead.of(me, following)",
        "ahead = Ahead.of(me, following)",
        UP_TO_64,
    ),
    mutant(
        "what is decoded ahead is the same stage again",
        "stale buffer",
        "multiply_stage",
        "Ahead.of(me, following)",
        "Ahead.of(me, stage)",
        UP_TO_64,
    ),
    mutant(
        "the second block's sums are added before they are there",
        "missing order",
        "multiply_stage",
        "me.blocks - 1 - b",
        "me.blocks - b",
        UP_TO_64,
    ),
    mutant("decode warps write a stage that is being multiplied", "stale buffer", "decode_tile", "stage.wait_empty()", "", OF_128),
    mutant(
        "a decoded stage is full when all but one of the decode warps have written it",
        "off by one",
        "sm90.memory_plan:smem_plan",
        "1 + decode_warps",
        "decode_warps",
        OF_128,
    ),
    mutant("decoded rows are stored without their swizzle", "wrong base", "decode_rows", "word ^ row", "word", OF_128),
    mutant(
        "the second half of a decoded row is added to its swizzle",
        "wrong base",
        "decode_rows",
        "first ^ (64 * half)",
        "first + 64 * half",
        OF_128,
    ),
    # --- tokens ahead
    mutant(
        "sums are added while they are multiplied",
        "missing order",
        "multiply_decoded",
        "wgmma.wait(partial, 0, tokens)",
        "wgmma.wait(partial, 1, tokens)",
        IN_PAIRS,
    ),
    mutant(
        "the next K block's tokens are loaded before they are there",
        "missing order",
        "multiply_decoded",
        "if cutlass.const_expr(ends): following.wait_full()",
        "",
        IN_PAIRS,
    ),
    mutant(
        "every K block has the first one's tokens",
        "stale buffer",
        "multiply_decoded",
        "me.fragment(following)",
        "me.fragment(stage)",
        IN_PAIRS,
    ),
    mutant(
        "a tile's powers of two are read from the stage after its last",
        "stale buffer",
        "DecodedAhead.multiply_tile",
        "stage.previous()",
        "stage",
        IN_PAIRS,
    ),
    mutant(
        "both chunks of many tokens have the first one's weights",
        "wrong base",
        "multiply_decoded",
        "me.operands(stage, c)",
        "me.operands(stage)",
        IN_PAIRS,
    ),
    # --- pairs
    mutant(
        "a CTA decodes the codes of the other one's half",
        "wrong base",
        "decode_stage",
        "half.rank * GROUP.code_bytes",
        "(1 - half.rank) * GROUP.code_bytes",
        IN_PAIRS,
    ),
    mutant("a CTA decodes its half with the shifts of the first rows", "wrong base", "shifts_of_stage", "(half.rank,)", "(0,)", IN_PAIRS),
    mutant("a CTA sends the first block of its half twice", "wrong base", "send_rows", "rows + block * BLOCK_BYTES", "rows", IN_PAIRS),
    mutant(
        "what a warp sends begins at the half's first rows",
        "wrong base",
        "send_rows",
        "rows_of(stage, half) + me.warp * WARP_BYTES",
        "rows_of(stage, half)",
        IN_PAIRS,
    ),
    mutant(
        "a half's codes are fetched from the tile's first",
        "wrong base",
        "GroupsOfTile.load",
        "y + self.first * GROUP.code_lines",
        "y",
        IN_PAIRS,
    ),
    mutant(
        "the other CTA's half is expected of tiles that share tokens, too",
        "off by one",
        "tokens_of",
        "select(tile.same_weights, Int32(config.weight_bytes // 2), Int32(0))",
        "config.weight_bytes // 2",
        COUNTS_CHANGE,
        IN_PAIRS,
    ),
    mutant(
        "a stage is free when the math warps of one CTA have read it",
        "off by one",
        "sm90.memory_plan:smem_plan",
        'MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", f"token loader and {fill}")',
        'MBarrier("empty", num_stages, math_warps, "every math warp of the cluster", "", f"token loader and {fill}")',
        IN_PAIRS,
    ),
    mutant(
        "a place of the deal is free before the second CTA's warp that stores has read it",
        "off by one",
        "sm90.memory_plan:smem_plan",
        "cluster - 1 if decode_warps else 0",
        "0",
        IN_PAIRS,
        COUNTS_CHANGE,
    ),
    mutant(
        "nobody stores the second CTA's tiles of Linear1",
        "missing order",
        "schedule_and_store",
        "ctx.cta_rank != 0",
        "ctx.cta_rank > 1",
        IN_PAIRS,
    ),
)
