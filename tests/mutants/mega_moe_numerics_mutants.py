"""Mutants of activations, biases, top-k weights that combine applies, and ranks beyond a warp's lanes."""

from __future__ import annotations

from mutant import Mutant

BIASES, ACTIVATIONS = "tests/kernels/test_biases.py", "tests/kernels/test_activations.py"
CASTS, RANKS = "tests/kernels/test_cast.py", "tests/kernels/test_many_ranks.py"
TWO_RANKS = f"{BIASES}::test_two_ranks"
COLUMNS = f"{TWO_RANKS}[SM90, tokens as columns]"
ROWS = f"{TWO_RANKS}[SM90, tokens as rows, weights in combine]"


def numerics_mutant(name: str, kind: str, where: str, old: str, new: str, *nearest: str) -> Mutant:
    """One that no short simulation runs into: its layers have none of this."""
    return Mutant(name, kind, where, old, new, nearest, archs=())


NUMERICS_MUTANTS = (
    numerics_mutant(
        "the polynomial of tanh goes on where it ends",
        "off by one",
        "SERIES_BELOW",
        "0.55",
        "1.1",
        f"{CASTS}::test_soft_limit_is_near_tanh",
    ),
    numerics_mutant(
        "a limited value is positive",
        "wrong number",
        "soft_limit",
        'emit_to(Float32, "copysign.f32 {}, {}, {};", x, fma(rest, Float32(-2.0 * limit), Float32(limit)))',
        'emit_to(Float32, "copysign.f32 {}, {}, {};", magnitude, fma(rest, Float32(-2.0 * limit), Float32(limit)))',
        f"{CASTS}::test_soft_limit_is_near_tanh",
    ),
    numerics_mutant(
        "the sigmoid is of the limited gate",
        "wrong number",
        "gated",
        "cast.times_sigmoid(value, gate, form.slope, fast)",
        "cast.times_sigmoid(value, value, form.slope, fast)",
        f"{ACTIVATIONS}::test_two_ranks[SM90, tokens as columns-situ]",
    ),
    numerics_mutant(
        "the bias of Linear2 is not weighed",
        "wrong number",
        "add_bias",
        "fma(bias, weight, sum_) if weighs_bias(ctx, phase) else sum_ + bias",
        "sum_ + bias",
        COLUMNS,
    ),
    numerics_mutant("every expert has the first one's biases", "wrong base", "bias_address", "Int64(expert)", "Int64(0)", COLUMNS),
    numerics_mutant(
        "with tokens as columns both blocks have the first one's biases",
        "wrong base",
        "columns_with_bias",
        "BLOCK_ROWS * b + 8 * h",
        "8 * h",
        COLUMNS,
    ),
    numerics_mutant(
        "of a half tile the second chunk has the first one's biases",
        "wrong base",
        "rows_with_bias",
        "tile.n_block * TILE_ROWS + me.first_chunk * CHUNK_ROWS",
        "tile.n_block * TILE_ROWS",
        ROWS,
    ),
    numerics_mutant(
        "both CTAs of a pair have one's biases",
        "wrong base",
        "load_biases",
        "part.n_block * BLOCK_N",
        "(part.n_block & -2) * BLOCK_N",
        f"{TWO_RANKS}[SM100]",
    ),
    numerics_mutant(
        "combine weighs every slot with the first one's weight",
        "wrong base",
        "add_next",
        "shuffle_f32(weight, sums.slot)",
        "shuffle_f32(weight, 0)",
        ROWS,
    ),
    numerics_mutant(
        "ranks of the second set are taken for those of the first",
        "wrong base",
        "rank_of_turn",
        "lowest_bit(mine) + LANES * i",
        "lowest_bit(mine)",
        f"{RANKS}::test_ranks_take_turns",
    ),
    numerics_mutant(
        "turns of the second set do not count the first",
        "wrong base",
        "rank_of_turn",
        "turn - popc(active[i - 1])",
        "turn + 0",
        f"{RANKS}::test_ranks_take_turns",
    ),
)
