"""Measures of kernels that multiply: which loops of a listing are whose.  Each raises `InspectionError` when one is missing."""

from __future__ import annotations

from ..blocks.sm100.epilogue_tile import PASS_ROWS
from ..hardware.operand_tile import CHUNK, ROW_BYTES
from ..sass.flow import Loop
from ..sass.measurer import TOKENS_PER_UNIT, InspectionError, Measure, Measurer, function_of

GMMA = r"\w*GMMA"
WGMMAS_PER_K_BLOCK = 8  # two pieces of a warpgroup's half of a tile, four steps of 32 bytes of K
WGMMAS_OF_A_HALF_TILE = 4  # one piece
STORES, SENDERS = ("STG.E.128", "STG.E.64"), (".finish_fc2", ".send", ".send_passes")
DECODED_WORDS = 64  # of E4M3, by a thread in a K block
STEPS = 4  # wgmmas of a part of a K block
TOKEN_CHUNKS = 2  # of a warpgroup in a tile of 256 rows (blocks/sm90/packed_share.py, which needs the DSL)


def measure_gemm(find: Measurer) -> list[Measure]:
    """Measures the loaders, and the math warps where a tile has K blocks enough for a loop."""
    config = find.config
    weights = find.tiled_loop("weight_loader", "weight loader", config.weights.loader, "UTMALDG", config.weights.boxes)
    # Where sums stay in the tensor core, the first K block is before the loop.
    has_loop = config.most_k_blocks > (config.k_in_flight if config.tile.scaled else 2)
    return [*(measure_gemm_math(find) if has_loop else ()), *measure_row_loader(find), *weights]


def measure_row_loader(find: Measurer) -> list[Measure]:
    """Measures a K block and a tile of the warp that loads rows of A by TMA, or of one that gathers them."""
    config = find.config
    if not config.problem.gathers:
        return measure_loaded_rows(find)
    copies = max(config.block_m // (config.rows.warps * 32 // (ROW_BYTES // CHUNK)), 1)
    return find.tiled_loop("token_gather", "token gatherer", "gather.gather_tile", "LDGSTS", copies)


def measure_gemm_math(find: Measurer) -> list[Measure]:
    """A K block of a whole tile, one of the places where a row of scales can begin, and a tile without any."""
    config = find.config
    parts = config.tile.chunks(False) * (TOKEN_CHUNKS if config.is_tall else 1)
    loop = find.inner("", **{GMMA: STEPS * parts * config.k_in_flight})
    tile = find.around(loop)
    inside = [one for one in find.flow.loops if one.body < tile.body]
    return [
        find.measure("math_k_block", "math", "K block", loop, config.k_in_flight),
        find.measure("math_tile", "math", "tile", tile, 1, inside),
    ]


def measure_pair_gemm(find: Measurer) -> list[Measure]:
    """All measures; a K block is a stage."""
    one_pass = find.tile_loop(find.accumulator_load(find.config.epilogue.function))
    return [
        *measure_pair_warps(find, measure_pair_rows(find), find.config.consumers),
        find.measure("epilogue_8_rows", "epilogue", "8 rows", one_pass, PASS_ROWS / TOKENS_PER_UNIT),
        find.measure("epilogue_tile", "epilogue", "tile", find.around(one_pass), 1, [one_pass]),
    ]


def measure_pair_warps(find: Measurer, rows: list[Measure], consumers: int = 1) -> list[Measure]:
    """Measures the MMA warp, `rows`, and the warp that loads weights."""
    mma = find.tiled_loop("mma", "MMA warp", "mma.", r"UTC\w*MMA", find.config.k_block.mmas * consumers)
    loads = 1 + find.config.problem.formats.scaled
    return [*mma, *rows, *find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", loads)]


def measure_loaded_rows(find: Measurer) -> list[Measure]:
    return find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", 1 + find.config.problem.formats.scaled)


def measure_pair_rows(find: Measurer) -> list[Measure]:
    """Measures the warp that loads rows, or one that gathers them: its lanes issue a gather4 one after another, in a loop of their own."""
    problem = find.config.problem
    if not problem.of_experts:
        return measure_loaded_rows(find)
    if not problem.gathers:
        return find.tiled_loop("token_gather", "token gatherer", "gather.", "UTMALDG", 1)
    rows, _ = find.k_loop("gather.", "UTMALDG", 1)
    block = find.around(rows)
    return [
        find.measure("token_gather_rows", "token gatherer", "4 rows", rows, 1),
        find.measure("token_gather_k_block", "token gatherer", "K block", block, 1, [rows]),
        find.measure("token_gather_tile", "token gatherer", "tile", find.around(block), 1, [block]),
    ]


def measure_sm90(find: Measurer) -> list[Measure]:
    """All measures; of the warp that stores tiles of Linear1 where math warps do not."""
    boxes, decoded = find.config.fc1_boxes, find.config.decoded
    store = find.inner("tile_scheduler." if decoded else ("load.store", "pool.signal"), UTMASTG=boxes) if boxes else None
    return [
        *measure_math(find),
        *(measure_decoding(find) if decoded else measure_loaded_rows(find)),
        *([] if decoded else find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", 1)),
        *([find.measure("store_tile", "store", "tile", store, 1)] if store else []),
        find.dispatch(),
        *find.combine(),
    ]


def measure_decoding(find: Measurer) -> list[Measure]:
    """The loop of the warp that loads codes, tokens and scales, and that of the warps that decode.  Only the branch for shifts that make
    subnormal numbers looks decoded values up; it is not counted."""
    operands = 5 if find.config.halves_decoding else 3  # codes come with their records, or in parts
    loop = find.inner("load.decode", PRMT=DECODED_WORDS)
    look_up = next(i for i in sorted(loop.body, reverse=True) if find.code[i].opcode == "LDS.64")  # the first are of shifts
    usual = loop.body - find.flow.side(look_up, max(loop.body))
    return [
        find.measure("operand_loader_k_block", "operand loader", "K block", find.inner("load.", UTMALDG=operands), 1),
        find.measure("decode_k_block", "decode", "K block", Loop(loop.head, usual), 1),
    ]


def measure_math(find: Measurer) -> list[Measure]:
    """The K loop; the epilogues, each of which runs for one kind of tile and not for the other; and the rest of the tile loop around them.
    Where half tiles have code of their own, only its K loop is measured.

    Only SwiGLU has exponentials, only the Linear2 epilogue writes 8 or 16 bytes a lane to global memory.  With tokens as columns a warp has
    all tokens of a tile, with tokens as rows it has 16: there the measure is the tile.
    """
    share = "packed_share.multiply_decoded" if find.config.halves_decoding else ("share.", "packed_share.")
    k_loop, k_blocks = find.k_loop(share, GMMA, WGMMAS_PER_K_BLOCK)
    tile, half = find.around(k_loop), list[Measure]()
    if not find.config.swap_ab:
        own, blocks = find.k_loop("share.", GMMA, WGMMAS_OF_A_HALF_TILE)
        half = [find.measure("math_k_block_half_tile", "math, half tile", "K block", own, blocks)]
        tile = Loop(tile.head, tile.body - find.flow.side(own.head, k_loop.head))
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


def measure_sm100(find: Measurer) -> list[Measure]:
    """All measures; a K block is a stage."""
    return [*measure_pair_warps(find, measure_loaded_rows(find)), *measure_passes(find), find.dispatch(), *find.combine()]


def measure_passes(find: Measurer) -> list[Measure]:
    """A pass of each tile function, and the tile loop around both.  When a tile has only one pass there is no loop over passes: then the
    pass is measured as everything that runs for one of the two kinds of tile and not for the other, set-up included."""
    first, last = find.accumulator_load("outputs."), find.accumulator_load("results.")
    tile = find.tile_loop(first, last)
    passes = [find.either(first, last, tile), find.either(last, first, tile)]
    units = find.config.store_block_m / TOKENS_PER_UNIT
    return [
        find.measure("fc1_epilogue_8_tokens", "Linear1 epilogue", "8 tokens", passes[0], units),
        find.measure("fc2_epilogue_8_tokens", "Linear2 epilogue", "8 tokens", passes[1], units),
        find.measure("epilogue_tile", "epilogue", "tile", tile, 1, passes),
    ]
