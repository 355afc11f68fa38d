"""Measures of GEMMs, which kernels of several families have."""

from __future__ import annotations

from ..blocks.gemm.gather import LANES_PER_ROW
from ..blocks.sm100.epilogue_tile import PASS_ROWS
from ..sass.measurer import TOKENS_PER_UNIT, Measure, Measurer

WGMMA = r"\w*GMMA"
STEPS = 4  # wgmmas of a part of a K block
TOKEN_CHUNKS = 2  # of a warpgroup in a tile of 256 rows (blocks/sm90/decoded_share.py, which needs the DSL)


def measure_gemm(find: Measurer) -> list[Measure]:
    """Measures the loaders, and the math warps where a tile has K blocks enough for a loop.  Raises `InspectionError`."""
    config = find.config
    # Where sums stay in the tensor core, the first K block is before the loop.
    has_loop = config.most_k_blocks > (config.k_in_flight if config.tile.scaled else 2)
    return [*(measure_math(find) if has_loop else ()), *measure_row_loader(find), *measure_weight_loader(find)]


def measure_row_loader(find: Measurer) -> list[Measure]:
    """Measures a K block and a tile of the warp that loads rows of A by TMA, or of one that gathers them."""
    config = find.config
    if not config.problem.gathers:
        return find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", 1 + config.tile.scaled)
    copies = max(config.block_m // (config.rows.warps * 32 // LANES_PER_ROW), 1)
    return find.tiled_loop("token_gather", "token gatherer", "gather.gather_tile", "LDGSTS", copies)


def measure_weight_loader(find: Measurer) -> list[Measure]:
    """Measures the weight loader, which fetches one or two boxes of a K block, or codes and records of weights that are decoded."""
    fetches = 2 if find.config.problem.decodes else find.config.weights.boxes
    return find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", fetches)


def measure_math(find: Measurer) -> list[Measure]:
    """A K block of a whole tile, one of the places where a row of scales can begin, and a tile without any."""
    config = find.config
    parts = config.tile.chunks(False) * (TOKEN_CHUNKS if config.is_tall else 1)
    loop = find.inner("", **{WGMMA: STEPS * parts * config.k_in_flight})
    tile = find.around(loop)
    inside = [one for one in find.flow.loops if one.body < tile.body]
    return [
        find.measure("math_k_block", "math", "K block", loop, config.k_in_flight),
        find.measure("math_tile", "math", "tile", tile, 1, inside),
    ]


def measure_pair_gemm(find: Measurer) -> list[Measure]:
    """All measures; a K block is a stage.  Raises `InspectionError` when one is missing."""
    mma = find.tiled_loop("mma", "MMA warp", "mma.", r"UTC\w*MMA", find.config.k_block.mmas * find.config.consumers)
    weights = find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", loads_per_k_block(find))
    return [*mma, *measure_pair_rows(find), *weights, *measure_passes(find)]


def measure_pair_rows(find: Measurer) -> list[Measure]:
    """Measures the warp that loads rows, or one that gathers them: its lanes issue a gather4 one after another, in a loop of their own."""
    problem = find.config.problem
    if not problem.of_experts:
        return find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", loads_per_k_block(find))
    if not problem.gathers:
        return find.tiled_loop("token_gather", "token gatherer", "gather.", "UTMALDG", 1)
    rows, _ = find.k_loop("gather.", "UTMALDG", 1)
    block = find.around(rows)
    return [
        find.measure("token_gather_rows", "token gatherer", "4 rows", rows, 1),
        find.measure("token_gather_k_block", "token gatherer", "K block", block, 1, [rows]),
        find.measure("token_gather_tile", "token gatherer", "tile", find.around(block), 1, [block]),
    ]


def loads_per_k_block(find: Measurer) -> int:
    return 1 + bool(find.config.problem.formats.scaled)


def measure_passes(find: Measurer) -> list[Measure]:
    """Measures 8 rows and a tile of the epilogue warps."""
    load = find.accumulator_load(find.config.epilogue.function)
    one_pass = find.tile_loop(load)
    return [
        find.measure("epilogue_8_rows", "epilogue", "8 rows", one_pass, PASS_ROWS / TOKENS_PER_UNIT),
        find.measure("epilogue_tile", "epilogue", "tile", find.around(one_pass), 1, [one_pass]),
    ]
