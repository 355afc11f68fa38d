"""Mutants of the decode family; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

FILE = "tests/kernels/test_decode.py"
ROWS = (f"{FILE}::test_experts_may_have_many_rows_or_none",)
SHAPES = (f"{FILE}::test_every_shape_is_exact",)
PACKED = (f"{FILE}::test_packed_weights_have_the_bits_of_the_fused_layer",)
RING = (f"{FILE}::test_a_short_ring_is_exact",)
mutant = partial(Mutant, archs=())

MUTANTS = (
    mutant(
        "an expert past the last has rows",
        "off by one",
        "decode.row_blocks:expert_of",
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
        "tokens beyond the rows of a tile are not summed",
        "off by one",
        "decode.math:finish_fc2",
        "config.max_tokens",
        "config.block_m",
        PACKED,
    ),
    mutant(
        "rows of Linear2 are read before they are there",
        "missing order",
        "decode.load:load_parts",
        "phase == FC2",
        "False",
        SHAPES,
    ),
    mutant(
        "half of a tile has the other half's rows",
        "wrong base",
        "plain_rows",
        "part == 2",
        "part == 1",
        SHAPES,
    ),
    mutant(
        "the last tiles are halves where these are too many for one turn",
        "off by one",
        "TileOrder",
        "2 * last <= sms",
        "last <= sms",
        SHAPES,
        equivalent="each half is computed all the same: it takes longer",
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
        "a column is summed without waiting for its rows",
        "missing order",
        "add_rows",
        "any_absent([word for words in rows for word in words])",
        "False",
        SHAPES,
    ),
    mutant(
        "a column is summed by the first tile of rows, which waits for those after it",
        "wrong order",
        "decode.math:finish_fc2",
        "tile.block == load_shared_u32(ctx.shared('blocks', 0)) - 1",
        "tile.block == 0",
        ROWS,
    ),
    mutant(
        "a word is there when any of the lanes has it",
        "too narrow",
        "any_absent",
        "ballot(Int32(Int32(greatest) == ABSENT)) != 0",
        "ballot(Int32(Int32(greatest) == ABSENT)) == -1",
        SHAPES,
    ),
    mutant(
        "the two channels of a word change places",
        "wrong base",
        "store_two_channels",
        "odd == 0",
        "odd != 0",
        SHAPES,
    ),
    mutant(
        "results of the launch before are not cleared",
        "missing clean-up",
        "decode.kernel:clear",
        "config.results.size // VECTOR",
        "0",
        RING,
    ),
    mutant(
        "the next launch writes where this one has",
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
        "stage.ring.index % config.source.row_warps == number",
        "k % config.source.row_warps == number",
        RING,
    ),
    mutant(
        "a token's slots past the twelfth are not added",
        "too narrow",
        "decode.math:sum_rows",
        "cutlass.range_constexpr(0, config.problem.topk, AT_ONCE)",
        "cutlass.range_constexpr(0, 1, AT_ONCE)",
        (f"{FILE}::test_experts_may_have_many_rows_or_none",),
    ),
)
