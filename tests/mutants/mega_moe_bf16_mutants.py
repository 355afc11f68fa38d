"""Mutants of what BF16 has for itself in the fused layer: rows of two bytes a value, stages of 64 channels, outputs without maxima."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

COLUMNS, ROWS, EDGES, SHORT_K = (
    f"tests/kernels/test_sm90_bf16.py::{one}"
    for one in (
        *("test_every_tile[8-False]", "test_every_tile[128-True]", "test_edges_of_a_tile"),
        "test_a_fast_warp_waits_before_it_writes_where_others_read",
    )
)
PAIRS, SHAPES = (f"tests/kernels/test_sm100_bf16.py::{one}" for one in ("test_every_tile[64]", "test_shapes_that_end_within_a_tile[96]"))
mutant = partial(Mutant, archs=())

BF16_MUTANTS = (
    mutant(
        "a warp's second run of BF16 channels lies beyond the second eight tokens",
        "wrong base",
        "Bf16Outputs.store",
        "warp * 2 + (matrix & 1)",
        "warp * 2 + (matrix >> 1)",
        nearest=(PAIRS,),
    ),
    mutant(
        "channels of BF16 outputs are paired instead of tokens",
        "wrong base",
        "Bf16Outputs.pack",
        "pack_bf16(values[2 * run], values[2 * run + 1])",
        "pack_bf16(values[run], values[run + 2])",
        nearest=(PAIRS,),
    ),
    mutant(
        "tiles of BF16 weights have as many channels as those of E4M3",
        "wrong base",
        "k_tiles",
        "k_block.channels // k_block.weight_tiles",
        "128",
        nearest=(SHAPES,),
    ),
    mutant(
        "the two runs of a warp's BF16 outputs lie four chunks apart",
        "wrong base",
        "pieces_bf16",
        "2 * me.warp + b",
        "me.warp + 4 * b",
        nearest=(COLUMNS,),
    ),
    mutant(
        "BF16 outputs are written while slower warps read results of Linear2",
        "missing order",
        "pieces_bf16",
        "sync_math_warps()",
        "pass",
        nearest=(SHORT_K,),
    ),
    mutant(
        "both warpgroups fill the first box of BF16 outputs",
        "wrong base",
        "epilogue_columns:finish_fc1",
        "0 if scaled else me.group",
        "0",
        nearest=(COLUMNS,),
    ),
    mutant(
        "both boxes of BF16 outputs go to the same channels",
        "wrong base",
        "store_boxes",
        "first + box * BLOCK_K",
        "first",
        nearest=(COLUMNS,),
    ),
    mutant(
        "BF16 outputs are in the order of E4M3's",
        "wrong base",
        "output_words",
        "row[4 * chunk + i][b::2]",
        "row[4 * chunk + i][2 * b : 2 * b + 2]",
        nearest=(ROWS,),
    ),
    mutant(
        "the second chunk of a half tile's BF16 outputs lies on the first",
        "wrong base",
        "store_bf16",
        "tile.n_block * CHUNKS + me.first_chunk",
        "tile.n_block * CHUNKS",
        nearest=(f"{EDGES}[tokens as rows]",),
    ),
    mutant(
        "a block of BF16 rows is counted in values of a byte",
        "wrong base",
        "Sm90Config.block_k",
        "BLOCK_K * 8 // self.problem.formats.activations.element_bits",
        "BLOCK_K",
        nearest=(COLUMNS,),
    ),
)
