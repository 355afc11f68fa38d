"""Mutants of what 4-bit activations have for themselves on SM100 (mxf4xmxf4): two values a byte, two words of scales a stage, their own
rounding and output tile."""

from __future__ import annotations

from mutant import Mutant

ROWS = "device/e2m1_rows.py"
TILE = "kernels/mega_moe/sm100/epilogue_tile.py"
EPILOGUE = "kernels/mega_moe/sm100/epilogue_fc1.py"
LOAD = "blocks/sm100/load.py"
MMA = "blocks/sm100/mma.py"
RUNS = "tests/kernels/test_w4a4.py"
OF_256, OF_128 = f"{RUNS}::test_fault_is_noticed[None]", f"{RUNS}::test_every_tile[96-128]"


def mutant(name: str, kind: str, file: str, old: str, new: str, *nearest: str) -> Mutant:
    """One that only tests of the recipe run into."""
    return Mutant(name, kind, file, old, new, nearest or (OF_256,), ())


W4A4_MUTANTS = (
    # --- outputs of Linear1
    mutant(
        "neighbouring channels change their nibbles",
        "wrong base",
        ROWS,
        "(even_row & Uint32(LOW)) | ((odd_row << 4) & Uint32(HIGH))",
        "(odd_row & Uint32(LOW)) | ((even_row << 4) & Uint32(HIGH))",
    ),
    mutant(
        "lanes send the halves that they are to keep",
        "wrong base",
        ROWS,
        "theirs = shuffle_xor(pick(low, high, sent), mask)",
        "theirs = shuffle_xor(pick(high, low, sent), mask)",
    ),
    mutant(
        "channels eight apart are packed by token, not side by side",
        "wrong base",
        "kernels/mega_moe/sm100/outputs_e2m1.py",
        "return values[0], values[2], values[1], values[3]",
        "return values[0], values[1], values[2], values[3]",
    ),
    mutant(
        "tokens 8 and 16 of a packed pass change places",
        "wrong base",
        TILE,
        "(lane & 4) * 4 + (lane >> 4) * 8",
        "(lane & 4) * 2 + (lane >> 4) * 16",
    ),
    mutant(
        "packed rows are stored without their swizzle",
        "wrong base",
        TILE,
        "((warp ^ ((token >> 1) & 2)) << 3)",
        "(warp << 3)",
    ),
    mutant(
        "packed outputs have the scales of E4M3",
        "wrong number",
        "kernels/mega_moe/sm100/activated_rows.py",
        "cast.abs_max(peaks[q], theirs[q]), largest)",
        "cast.abs_max(peaks[q], theirs[q]))",
    ),
    mutant(
        "the columns of a packed output tile are counted as bytes of E4M3",
        "wrong base",
        EPILOGUE,
        "n_block * plan.fc1_row_bytes",
        "n_block * 64",
    ),
    # --- stages
    mutant(
        "token scales of a stage of two words begin one word after the last stage's",
        "wrong base",
        LOAD,
        'load_tile(stage.shared("sfa"), tile.scales, full, tile.scale_row, tile.scale_k + k * tile.k_block.words)',
        'load_tile(stage.shared("sfa"), tile.scales, full, tile.scale_row, tile.scale_k + k)',
    ),
    mutant(
        "weight scales of a stage of two words begin one word after the last stage's",
        "wrong base",
        LOAD,
        'load_tile(stage.shared("sfb"), tile.scales, full, tile.scale_row, tile.scale_k + k * tile.k_block.words)',
        'load_tile(stage.shared("sfb"), tile.scales, full, tile.scale_row, tile.scale_k + k)',
    ),
    mutant(
        "a stage's second word of scales goes with its first channels",
        "wrong base",
        MMA,
        "step = word * len(ids) + i",
        "step = i",
    ),
    mutant(
        "a stage has one word of weight scales",
        "wrong base",
        MMA,
        "sfb + word * atom_size",
        "sfb + 0 * word",
    ),
    mutant(
        "the second word of token scales begins one atom after the first",
        "wrong base",
        MMA,
        "(word * columns.atoms + atom) * atom_size",
        "(word + atom) * atom_size",
        f"{RUNS}::test_every_tile[192-256]",
    ),
    mutant(
        "MMAs of 64 channels count their scales by ones",
        "wrong number",
        MMA,
        "for i, scale_id in enumerate(ids):",
        "for i, scale_id in enumerate(range(len(ids))):",
    ),
    mutant(
        "rows of 64 bytes are described as rows of 128",
        "wrong number",
        MMA,
        "tcgen05.OPERAND_HIGH[tile.k_block.row_bytes]",
        "tcgen05.OPERAND_HIGH[128]",
        OF_128,
    ),
    mutant(
        "a byte of a token is pulled for every channel",
        "wrong number",
        "kernels/mega_moe/pull.py",
        "RowChunks(problem.formats.activations.row_bytes(problem.hidden), ctx",
        "RowChunks(problem.hidden, ctx",
    ),
)
