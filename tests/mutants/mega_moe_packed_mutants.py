"""Mutants of what 4-bit weights have for themselves on SM90 (fp8xmxfp4): their order, the tables, scales taken apart, the ring of decoded
tiles."""

from __future__ import annotations

from mutant import Mutant

E2M1 = "device/e2m1.py"
SHARE = "blocks/sm90/packed_share.py"
DECODE = "blocks/sm90/decode.py"
DECODED = "blocks/sm90/decoded_share.py"
TILES = "quant/packed_tiles.py"
RUNS = "tests/kernels/test_sm90_packed.py"
UP_TO_64, OF_128 = f"{RUNS}::test_random_data_to_the_bit_with_clamp[16]", f"{RUNS}::test_random_data_to_the_bit_with_clamp[128]"
FULL_OF_128 = f"{RUNS}::test_every_tile[128-False]"
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
)
