"""Mutants of the decode family; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

FILE = "tests/kernels/test_decode.py"
ROWS = (f"{FILE}::test_experts_may_have_many_rows_or_none",)
SHAPES = (f"{FILE}::test_every_shape_is_exact",)
RING = (f"{FILE}::test_a_short_ring_is_exact",)
mutant = partial(Mutant, archs=())

MUTANTS = (
    mutant(
        "an expert past the last has rows",
        "off by one",
        "decode.kernel:expert_of",
        "name < config.problem.num_experts",
        "name <= config.problem.num_experts",
        ROWS,
    ),
    mutant(
        "a slot comes before itself",
        "off by one",
        "find_blocks",
        "(Int32(others[i]) == expert) & (start + i < thread)",
        "(Int32(others[i]) == expert) & (start + i <= thread)",
        ROWS,
    ),
    mutant(
        "rows of Linear2 are read before they are there",
        "missing order",
        "decode.load:fill_rows",
        "seen = wait_ready(ctx, tile.block, seen)",
        "seen = seen",
        SHAPES,
    ),
    mutant(
        "rows reach the tensor core without a proxy fence",
        "missing order",
        "decode.load:fill_rows",
        "fence_async_shared()",
        "",
        SHAPES,
    ),
    mutant(
        "rows of Linear2 are announced before they are visible",
        "missing order",
        "decode.math:finish_fc1",
        "reduce_add_u32(ctx.counter('ready', tile.block), 1, 'release', 'gpu')",
        "reduce_add_u32(ctx.counter('ready', tile.block), 1, 'relaxed', 'gpu')",
        SHAPES,
    ),
    mutant(
        "a column is summed when one tile of it is left",
        "off by one",
        "decode.math:finish_fc2",
        "load_shared_u32(ctx.shared('blocks', 0)) - 1",
        "load_shared_u32(ctx.shared('blocks', 0)) - 2",
        SHAPES,
    ),
    mutant(
        "counters of the launch before are not cleared",
        "missing clean-up",
        "decode.kernel:clear",
        "first < MOST_COUNTERS // VECTOR",
        "first < 0",
        RING,
    ),
    mutant(
        "the next launch counts where this one has",
        "missing clean-up",
        "decode.load:load_weights",
        "REGION - (total + config.num_sms)",
        "0 - (total + config.num_sms)",
        RING,
    ),
    mutant(
        "a row warp fills another warp's stages",
        "wrong phase",
        "decode.load:fill_rows",
        "stage.ring.index % ROW_WARPS == number",
        "k % ROW_WARPS == number",
        RING,
    ),
)
