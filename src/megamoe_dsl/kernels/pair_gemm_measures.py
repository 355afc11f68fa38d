"""Measures of SM100's GEMMs, in kernels of several families."""

from __future__ import annotations

from ..blocks.sm100.epilogue_tile import PASS_ROWS
from ..sass.measurer import TOKENS_PER_UNIT, Measure, Measurer


def measure_pair_gemm(find: Measurer) -> list[Measure]:
    """All measures; a K block is a stage.  Raises `InspectionError` when one is missing."""
    return [*measure_mma(find), *measure_row_loader(find), *measure_weight_loader(find), *measure_epilogue(find)]


def measure_row_loader(find: Measurer) -> list[Measure]:
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


def measure_mma(find: Measurer) -> list[Measure]:
    return find.tiled_loop("mma", "MMA warp", "mma.", r"UTC\w*MMA", find.config.k_block.mmas * find.config.consumers)


def loads_per_k_block(find: Measurer) -> int:
    return 1 + bool(find.config.problem.formats.scaled)


def measure_weight_loader(find: Measurer) -> list[Measure]:
    return find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", loads_per_k_block(find))


def measure_epilogue(find: Measurer) -> list[Measure]:
    """Measures 8 rows and a tile of the epilogue warps."""
    load = find.accumulator_load(find.config.epilogue.function)
    one_pass = find.tile_loop(load)
    return [
        find.measure("epilogue_8_rows", "epilogue", "8 rows", one_pass, PASS_ROWS / TOKENS_PER_UNIT),
        find.measure("epilogue_tile", "epilogue", "tile", find.around(one_pass), 1, [one_pass]),
    ]
