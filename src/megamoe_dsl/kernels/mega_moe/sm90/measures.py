"""Measures of the SM90 mega kernel."""

from __future__ import annotations

from ....sass.flow import Loop
from ....sass.measurer import TOKENS_PER_UNIT, InspectionError, Measure, Measurer
from ....sass.source import function_of

GMMA = r"\w*GMMA"
WGMMAS_PER_K_BLOCK = 8  # two pieces of a warpgroup's half of a tile, four steps of 32 channels
WGMMAS_WITH_FEW_TOKENS = 4  # one piece


def measure_sm90(find: Measurer) -> list[Measure]:
    """All measures.  Raises `InspectionError` when one is missing."""
    return [
        *measure_math(find),
        *find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", 2),
        *find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", 1),
        find.measure("store_tile", "store", "tile", find.inner("store.", UTMASTG=1), 1),
        find.dispatch(),
        *find.combine(),
    ]


def measure_math(find: Measurer) -> list[Measure]:
    """The K loop, what runs for one of the two kinds of tile and not for the other, and the rest of the tile loop around them.  Of tiles
    with few tokens, where they have code of their own, the K loop alone is measured.

    Only SwiGLU has exponentials, only the L2 epilogue writes 16 bytes a lane to global memory.  With tokens as columns a warp has all
    tokens of a tile, with tokens as rows it has 16: there the measure is the tile.
    """
    k_loop, k_blocks = find.k_loop("tokens_as_", GMMA, WGMMAS_PER_K_BLOCK)
    tile = find.around(k_loop)
    elsewhere, few = (frozenset(), []) if find.config.swap_ab else measure_few_tokens(find, k_loop)
    tile = Loop(tile.head, tile.body - elsewhere)
    inside = sorted(tile.body)
    first = next((i for i in inside if find.code[i].opcode == "MUFU.EX2"), None)
    last = next((i for i in inside if find.code[i].opcode == "STG.E.128" and "finish_l2" in (function_of(find.code[i]) or "")), None)
    if first is None or last is None:
        raise InspectionError("the loop of math tiles has no epilogue with MUFU.EX2 or none with STG.E.128")
    units, unit, suffix = (find.config.block_m / TOKENS_PER_UNIT, "8 tokens", "8_tokens") if find.config.swap_ab else (1.0, "tile", "tile")
    passes = [find.either(first, last, tile), find.either(last, first, tile)]
    return [
        find.measure("math_k_block", "math", "K block", k_loop, k_blocks),
        find.measure(f"l1_epilogue_{suffix}", "L1 epilogue", unit, passes[0], units),
        find.measure(f"l2_epilogue_{suffix}", "L2 epilogue", unit, passes[1], units),
        find.measure("math_tile", "math", "tile", tile, 1, [k_loop, *passes]),
        *few,
    ]


def measure_few_tokens(find: Measurer, k_loop: Loop) -> tuple[frozenset[int], list[Measure]]:
    """With tokens as rows: what runs for tiles with few of them, and the measure of its K loop."""
    own, blocks = find.k_loop("tokens_as_m.", GMMA, WGMMAS_WITH_FEW_TOKENS)
    measure = find.measure("math_k_block_few_tokens", "math, few tokens", "K block", own, blocks)
    return find.flow.side(own.head, k_loop.head), [measure]
