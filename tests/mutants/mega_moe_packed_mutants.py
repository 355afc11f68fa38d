"""Mutants of what 4-bit weights have for themselves on SM90 (fp8xmxfp4): their order, the tables, scales taken apart, the ring of decoded
tiles."""

from __future__ import annotations

from mutant import Mutant

E2M1 = "device/e2m1.py"
SHARE = "blocks/sm90/packed_share.py"
DECODE = "blocks/sm90/decode.py"
DECODED = "blocks/sm90/decoded_share.py"
AHEAD = "blocks/sm90/decoded_ahead.py"
TILES = "quant/packed_tiles.py"
RUNS = "tests/kernels/test_sm90_packed.py"
UP_TO_64, OF_128 = f"{RUNS}::test_random_data_to_the_bit_with_clamp[16]", f"{RUNS}::test_random_data_to_the_bit_with_clamp[128]"
FULL_OF_128 = f"{RUNS}::test_every_tile[128-False]"
IN_PAIRS, COUNTS_CHANGE = f"{RUNS}::test_pairs_share_weights_and_tokens[False]", f"{RUNS}::test_pairs_of_changing_counts"
FAR_APART = f"{RUNS}::test_scales_as_far_apart_as_can_be"
MAGNITUDES = f"{RUNS}::test_rows_of_zeros_and_of_other_magnitudes"
BYTES = ("tests/quant/test_packed_tiles.py::test_a_layers_weights_and_back",)


def mutant(name: str, kind: str, file: str, old: str, new: str, *nearest: str) -> Mutant:
    """One that only tests of the recipe run into."""
    return Mutant(name, kind, file, old, new, nearest, ())


PACKED_MUTANTS = (
    # --- codes
    mutant(
        "the second four values of a word have the first four's signs",
        "wrong number",
        E2M1,
        "((word << 4) & Uint32(SIGNS))",
        "(word & Uint32(SIGNS))",
        UP_TO_64,
    ),
    mutant(
        "the second four values of a word have the first four's selectors",
        "wrong number",
        E2M1,
        "_pick(entry, selectors >> 16)",
        "_pick(entry, selectors)",
        UP_TO_64,
    ),
    mutant(
        "both blocks of a warpgroup have the codes of the first",
        "wrong base",
        SHARE,
        "(self.group * self.blocks + block) * (2 * HALF_BYTES)",
        "(self.group * self.blocks) * (2 * HALF_BYTES)",
        UP_TO_64,
    ),
    mutant(
        "signs of both runs of a word change places when weights are packed",
        "wrong base",
        TILES,
        "signs[..., 1, :] | (signs[..., 0, :] << 4)",
        "signs[..., 0, :] | (signs[..., 1, :] << 4)",
        *BYTES,
    ),
    # --- scales
    mutant(
        "a record's second row has the first row's shifts",
        "wrong base",
        E2M1,
        "((shifts >> 4) | (shifts << 28)) & Uint32(SHIFT_MASK)",
        "shifts & Uint32(SHIFT_MASK)",
        UP_TO_64,
    ),
    mutant("every step of K has the first one's shift", "wrong base", E2M1, "0x4440 + step", "0x4440", UP_TO_64),
    mutant(
        "the table is a power of two too low",
        "wrong number",
        E2M1,
        "(Int32(127 + HIGHEST) - shift) << 23",
        "(Int32(126 + HIGHEST) - shift) << 23",
        UP_TO_64,
    ),
    mutant(
        "the table has no entry of the last shift",
        "off by one",
        E2M1,
        "if lane < SHIFTS:",
        "if lane < SHIFTS - 1:",
        f"{FAR_APART}[8]",
    ),
    mutant(
        "a zero's exponent is computed as those of other numbers",
        "wrong number",
        E2M1,
        "Uint32(low) - shift * Uint32(0x01010100)",
        "Uint32(low) - shift * Uint32(0x01010101)",
        OF_128,
    ),
    mutant(
        "subnormal numbers of a pair's second row are not looked up",
        "too narrow",
        "hardware/packed_tile.py",
        "TINY_BITS = 0x44444444",
        "TINY_BITS = 0x40404040",
        f"{FAR_APART}[128-second]",
    ),
    mutant(
        "tokens are scaled without their weight tile's power of two",
        "wrong number",
        SHARE,
        "tuple(one * factor for one in",
        "tuple(one for one in",
        f"{RUNS}::test_channels_of_other_magnitudes[8]",
    ),
    mutant(
        "rows eight further have the first rows' powers of two",
        "wrong base",
        SHARE,
        "factors[2 * b + i // 2 % 2]",
        "factors[2 * b]",
        f"{MAGNITUDES}[8]",
    ),
    mutant(
        "rows eight and 64 further change their powers of two",
        "wrong base",
        DECODED,
        "power_of_byte(word, 2 * b + h)",
        "power_of_byte(word, b + 2 * h)",
        f"{MAGNITUDES}[128]",
    ),
    mutant(
        "both warpgroups of a half tile have the first chunk's powers of two",
        "wrong base",
        DECODED,
        "record_index(self.first_chunk + c, w, self.pair)",
        "record_index(c, w, self.pair)",
        f"{MAGNITUDES}[128]",
    ),
    mutant(
        "powers of two are read from the stage after a tile's last",
        "stale buffer",
        DECODED,
        "me.scale_rows(acc.parts, stage.previous()), stage",
        "me.scale_rows(acc.parts, stage), stage",
        f"{MAGNITUDES}[128]",
        OF_128,
    ),
    mutant(
        "powers of two lie by lane, not by row",
        "wrong base",
        DECODE,
        "4 * record_index(g, me.warp, row_of(me.lane))",
        "4 * record_index(g, me.warp, me.lane & 7)",
        OF_128,
    ),
    mutant(
        "powers of two come with a tile's first stage, not its last",
        "stale buffer",
        DECODE,
        "if k + 1 == k_blocks:",
        "if k == 0:",
        OF_128,
    ),
    mutant(
        "tokens that are loaded into registers lie by half rows, not by rows",
        "wrong base",
        DECODED,
        "((matrix & 1) * 8 + row)",
        "((matrix >> 1) * 8 + row)",
        FULL_OF_128,
    ),
    mutant(
        "a loader of tokens and weights loads a tile's first weights twice",
        "off by one",
        "kernels/mega_moe/sm90/load.py",
        "Int32(1), Int32(0)), k + 1)",
        "Int32(1), Int32(0)), k)",
        OF_128,
    ),
    mutant(
        "places of shifts are rotated the other way when weights are packed",
        "wrong base",
        TILES,
        "(second >> 4).roll(1, dims=-1)",
        "(second >> 4).roll(-1, dims=-1)",
        *BYTES,
    ),
    # --- order
    mutant(
        "the next stage is decoded before it is full",
        "missing order",
        SHARE,
        "        following.wait_full()\n",
        "",
        UP_TO_64,
    ),
    mutant(
        "what is decoded ahead is the same stage again",
        "stale buffer",
        SHARE,
        "ahead = Ahead.of(me, following)",
        "ahead = Ahead.of(me, stage)",
        UP_TO_64,
    ),
    mutant(
        "the second block's sums are added before they are there",
        "missing order",
        SHARE,
        "wgmma.wait(started[b], me.blocks - 1 - b, fragments[b])",
        "wgmma.wait(started[b], me.blocks - b, fragments[b])",
        UP_TO_64,
    ),
    mutant(
        "decode warps write a stage that is being multiplied",
        "stale buffer",
        DECODE,
        "        stage.wait_empty()\n",
        "",
        OF_128,
    ),
    mutant(
        "a decoded stage is full when all but one of the decode warps have written it",
        "off by one",
        "kernels/mega_moe/sm90/barriers.py",
        "num_stages, 1 + decode_warps,",
        "num_stages, decode_warps,",
        OF_128,
    ),
    mutant(
        "decoded rows are stored without their swizzle",
        "wrong base",
        DECODE,
        "((word ^ row) << 4)",
        "(word << 4)",
        OF_128,
    ),
    mutant(
        "the second half of a decoded row is added to its swizzle",
        "wrong base",
        DECODE,
        "first ^ (64 * half)",
        "first + 64 * half",
        OF_128,
    ),
    # --- tokens ahead
    mutant(
        "sums are added while they are multiplied",
        "missing order",
        AHEAD,
        "wgmma.wait(partial, 0, tokens)",
        "wgmma.wait(partial, 1, tokens)",
        IN_PAIRS,
    ),
    mutant(
        "the next K block's tokens are loaded before they are there",
        "missing order",
        AHEAD,
        "        if cutlass.const_expr(ends):\n            following.wait_full()\n",
        "",
        IN_PAIRS,
    ),
    mutant(
        "every K block has the first one's tokens",
        "stale buffer",
        AHEAD,
        "tokens = me.fragment(following)",
        "tokens = me.fragment(stage)",
        IN_PAIRS,
    ),
    mutant(
        "a tile's powers of two are read from the stage after its last",
        "stale buffer",
        AHEAD,
        "me.scale_rows(acc.parts, stage.previous())",
        "me.scale_rows(acc.parts, stage)",
        IN_PAIRS,
    ),
    mutant(
        "both chunks of many tokens have the first one's weights",
        "wrong base",
        AHEAD,
        "(weights + c * me.chunk_bytes)",
        "weights",
        IN_PAIRS,
    ),
    # --- pairs
    mutant(
        "a CTA decodes the codes of the other one's half",
        "wrong base",
        DECODE,
        "packed + half.rank * GROUP.code_bytes",
        "packed + (1 - half.rank) * GROUP.code_bytes",
        IN_PAIRS,
    ),
    mutant(
        "a CTA decodes its half with the shifts of the first rows",
        "wrong base",
        DECODE,
        "else (half.rank,)",
        "else (0,)",
        IN_PAIRS,
    ),
    mutant(
        "a CTA sends the first block of its half twice",
        "wrong base",
        DECODE,
        "source = rows + block * BLOCK_BYTES",
        "source = rows",
        IN_PAIRS,
    ),
    mutant(
        "what a warp sends begins at the half's first rows",
        "wrong base",
        DECODE,
        "rows_of(stage, half) + me.warp * WARP_BYTES",
        "rows_of(stage, half)",
        IN_PAIRS,
    ),
    mutant(
        "a half's codes are fetched from the tile's first",
        "wrong base",
        "blocks/sm90/load.py",
        "full, x, y + self.first * GROUP.code_lines)",
        "full, x, y)",
        IN_PAIRS,
    ),
    mutant(
        "the other CTA's half is expected of tiles that share tokens, too",
        "off by one",
        "kernels/mega_moe/sm90/load.py",
        "select(tile.same_weights, Int32(plan.weight_bytes // 2), Int32(0))",
        "plan.weight_bytes // 2",
        COUNTS_CHANGE,
        IN_PAIRS,
    ),
    mutant(
        "a stage is free when the math warps of one CTA have read it",
        "off by one",
        "kernels/mega_moe/sm90/barriers.py",
        'MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", "token loader and decode',
        'MBarrier("empty", num_stages, math_warps, "every math warp of the cluster", "", "token loader and decode',
        IN_PAIRS,
    ),
    mutant(
        "a place of the deal is free before the second CTA's warp that stores has read it",
        "off by one",
        "kernels/mega_moe/sm90/barriers.py",
        "(cluster - 1 if decode_warps else 0)",
        "0",
        IN_PAIRS,
        COUNTS_CHANGE,
    ),
    mutant(
        "nobody stores the second CTA's tiles of Linear1",
        "missing order",
        "kernels/mega_moe/sm90/store.py",
        "if ctx.cta_rank != 0:",
        "if ctx.cta_rank > 1:",
        IN_PAIRS,
    ),
)
