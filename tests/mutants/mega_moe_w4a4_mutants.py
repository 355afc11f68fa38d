"""Mutants of what 4-bit activations have for themselves on SM100 (mxf4xmxf4): two values a byte, two words of scales a stage, their own
rounding and output tile."""

from __future__ import annotations

from mutant import Mutant

RUNS = "tests/kernels/test_w4a4.py"
OF_256, OF_128 = f"{RUNS}::test_fault_is_noticed[None]", f"{RUNS}::test_every_tile[96-128]"


def mutant(name: str, kind: str, where: str, old: str, new: str, *nearest: str) -> Mutant:
    """One that only tests of the recipe run into."""
    return Mutant(name, kind, where, old, new, nearest or (OF_256,), ())


W4A4_MUTANTS = (
    # --- outputs of Linear1
    mutant(
        "neighboring channels change their nibbles",
        "wrong base",
        "gather_rows",
        "(even_row & Uint32(LOW)) | ((odd_row << 4) & Uint32(HIGH))",
        "(odd_row & Uint32(LOW)) | ((even_row << 4) & Uint32(HIGH))",
    ),
    mutant("lanes send the halves that they are to keep", "wrong base", "_exchange", "pick(low, high, sent)", "pick(high, low, sent)"),
    mutant(
        "channels eight apart are packed by token, not side by side",
        "wrong base",
        "E2m1Outputs.pack",
        "values[0], values[2], values[1], values[3]",
        "values[0], values[1], values[2], values[3]",
    ),
    mutant(
        "tokens 8 and 16 of a packed pass change places",
        "wrong base",
        "packed_token",
        "(lane & 4) * 4 + (lane >> 4) * 8",
        "(lane & 4) * 2 + (lane >> 4) * 16",
    ),
    mutant("packed rows are stored without their swizzle", "wrong base", "packed_store_address", "warp ^ ((token >> 1) & 2)", "warp"),
    mutant(
        "packed outputs have the scales of E4M3",
        "wrong number",
        "joint_exponents",
        "cast.scale_exponent(cast.abs_max(peaks[q], theirs[q]), largest)",
        "cast.scale_exponent(cast.abs_max(peaks[q], theirs[q]))",
    ),
    mutant(
        "the columns of a packed output tile are counted as bytes of E4M3",
        "wrong base",
        "store_outputs",
        "n_block * ctx.config.fc1_row_bytes",
        "n_block * 64",
    ),
    # --- stages
    mutant(
        "token scales of a stage of two words begin one word after the last stage's",
        "wrong base",
        "load_tokens",
        "k * tile.k_block.words",
        "k",
    ),
    mutant(
        "weight scales of a stage of two words begin one word after the last stage's",
        "wrong base",
        "load_weights",
        "k * tile.k_block.words",
        "k",
    ),
    mutant("a stage's second word of scales goes with its first channels", "wrong base", "multiply", "word * len(ids) + i", "i"),
    mutant("a stage has one word of weight scales", "wrong base", "copy_word", "word * atom_size", "0 * word"),
    mutant(
        "the second word of token scales begins one atom after the first",
        "wrong base",
        "copy_word",
        "word * atoms",
        "word",
        f"{RUNS}::test_every_tile[192-256]",
    ),
    mutant("MMAs of 64 channels count their scales by ones", "wrong number", "multiply", "enumerate(ids)", "enumerate(range(len(ids)))"),
    mutant(
        "rows of 64 bytes are described as rows of 128",
        "wrong number",
        "multiply",
        "tcgen05.OPERAND_HIGH[tile.k_block.row_bytes]",
        "tcgen05.OPERAND_HIGH[128]",
        OF_128,
    ),
    mutant(
        "a byte of a token is pulled for every channel",
        "wrong number",
        "chunks_of",
        "problem.formats.activations.row_bytes(problem.hidden)",
        "problem.hidden",
    ),
)
