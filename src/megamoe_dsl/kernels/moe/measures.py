"""Measures of the fused layer's kernels."""

from __future__ import annotations

from ...sass.flow import Loop
from ...sass.measurer import TOKENS_PER_UNIT, InspectionError, Measure, Measurer, function_of

GMMA = r"\w*GMMA"
WGMMAS_PER_K_BLOCK = 8  # two pieces of a warpgroup's half of a tile, four steps of 32 bytes of K
WGMMAS_OF_A_HALF_TILE = 4  # one piece
STORES, SENDERS = ("STG.E.128", "STG.E.64"), (".finish_fc2", ".send", ".send_passes")
DECODED_WORDS = 64  # of E4M3, by a thread in a K block


def measure_sm90(find: Measurer) -> list[Measure]:
    """All measures; of the warp that stores tiles of Linear1 where math warps do not.  Raises `InspectionError` when one is missing."""
    boxes, role = find.config.smem.fc1_boxes, "tile_scheduler." if find.config.decoded else "store."
    return [
        *measure_math(find),
        *measure_loaders(find),
        *([find.measure("store_tile", "store", "tile", find.inner(role, UTMASTG=boxes), 1)] if boxes else []),
        *measure_decode(find),
        find.dispatch(),
        *find.combine(),
    ]


def measure_loaders(find: Measurer) -> list[Measure]:
    """The loops of both loaders, or that of the one that loads codes, tokens and scales."""
    if find.config.decoded:
        operands = 5 if find.config.halves_decoding else 3  # codes come with their records, or in parts
        return [find.measure("operand_loader_k_block", "operand loader", "K block", find.inner("load.", UTMALDG=operands), 1)]
    return [
        *find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", 1 + find.config.scaled),
        *find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", 1),
    ]


def measure_decode(find: Measurer) -> list[Measure]:
    """The loop of the warps that decode weights, if there are any, without the branch for shifts that make subnormal numbers, which alone
    looks decoded values up."""
    if not find.config.decoded:
        return []
    loop = find.inner("decode.", PRMT=DECODED_WORDS)
    look_up = next(i for i in sorted(loop.body, reverse=True) if find.code[i].opcode == "LDS.64")  # the first are of shifts
    usual = loop.body - find.flow.side(look_up, max(loop.body))
    return [find.measure("decode_k_block", "decode", "K block", Loop(loop.head, usual), 1)]


def measure_math(find: Measurer) -> list[Measure]:
    """The K loop; the epilogues, each of which runs for one kind of tile and not for the other; and the rest of the tile loop around them.
    Where half tiles have code of their own, only its K loop is measured.

    Only SwiGLU has exponentials, only the Linear2 epilogue writes 8 or 16 bytes a lane to global memory.  With tokens as columns a warp has
    all tokens of a tile, with tokens as rows it has 16: there the measure is the tile.
    """
    decoded = "decoded_share.multiply_stage" if find.config.decoded and find.config.halves_decoding else "decoded_share."
    share = decoded if find.config.decoded else "packed_share." if find.config.packed else "share."
    k_loop, k_blocks = find.k_loop(share, GMMA, WGMMAS_PER_K_BLOCK)
    tile = find.around(k_loop)
    elsewhere, half = (frozenset(), []) if find.config.swap_ab else measure_half_tiles(find, k_loop)
    tile = Loop(tile.head, tile.body - elsewhere)
    inside = sorted(tile.body)
    first = next((i for i in inside if find.code[i].opcode == "MUFU.EX2"), None)
    sends = [i for i in inside if find.code[i].opcode in STORES and (function_of(find.code[i]) or "").endswith(SENDERS)]
    last = sends[0 if find.config.scaled else -1] if sends else None  # BF16 outputs of Linear1 are sent, too, before results
    if first is None or last is None:
        raise InspectionError("the loop of math tiles has no epilogue with MUFU.EX2 or none that sends results")
    units, unit, suffix = (find.config.block_m / TOKENS_PER_UNIT, "8 tokens", "8_tokens") if find.config.swap_ab else (1.0, "tile", "tile")
    passes = [find.either(first, last, tile), find.either(last, first, tile)]
    return [
        find.measure("math_k_block", "math", "K block", k_loop, k_blocks),
        find.measure(f"fc1_epilogue_{suffix}", "Linear1 epilogue", unit, passes[0], units),
        find.measure(f"fc2_epilogue_{suffix}", "Linear2 epilogue", unit, passes[1], units),
        find.measure("math_tile", "math", "tile", tile, 1, [k_loop, *passes]),
        *half,
    ]


def measure_half_tiles(find: Measurer, k_loop: Loop) -> tuple[frozenset[int], list[Measure]]:
    """With tokens as rows: what runs for half tiles, and the measure of its K loop."""
    own, blocks = find.k_loop("share.", GMMA, WGMMAS_OF_A_HALF_TILE)
    measure = find.measure("math_k_block_half_tile", "math, half tile", "K block", own, blocks)
    return find.flow.side(own.head, k_loop.head), [measure]


def measure_sm100(find: Measurer) -> list[Measure]:
    """All measures; a K block is a stage.  Raises `InspectionError` when one is missing."""
    mmas, loads = find.config.k_block.mmas, 1 + find.config.problem.formats.scaled
    return [
        *find.tiled_loop("mma", "MMA warp", "mma.", r"UTC\w*MMA", mmas),
        *find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", loads),
        *find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", loads),
        *measure_passes(find),
        find.dispatch(),
        *find.combine(),
    ]


def measure_passes(find: Measurer) -> list[Measure]:
    """A pass of each tile function, and the tile loop around both.  When a tile has only one pass there is no loop over passes: then the
    pass is measured as everything that runs for one of the two kinds of tile and not for the other, set-up included."""
    first, last = find.accumulator_load("epilogue.finish_fc1"), find.accumulator_load("results.")
    tile = find.tile_loop(first, last)
    passes = [find.either(first, last, tile), find.either(last, first, tile)]
    units = find.config.store_block_m / TOKENS_PER_UNIT
    return [
        find.measure("fc1_epilogue_8_tokens", "Linear1 epilogue", "8 tokens", passes[0], units),
        find.measure("fc2_epilogue_8_tokens", "Linear2 epilogue", "8 tokens", passes[1], units),
        find.measure("epilogue_tile", "epilogue", "tile", tile, 1, passes),
    ]
