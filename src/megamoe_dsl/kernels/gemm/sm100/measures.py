"""Measures of the SM100 GEMM kernel."""

from __future__ import annotations

from ....blocks.gemm.sm100.config import PASS_ROWS
from ....sass.measurer import TOKENS_PER_UNIT, Measure, Measurer


def measure_pair_gemm(find: Measurer) -> list[Measure]:
    """All measures; a K block is a stage.  Raises `InspectionError` when one is missing."""
    return [
        *measure_mma(find),
        *find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", loads_per_k_block(find)),
        *measure_weight_loader(find),
        *measure_epilogue(find),
    ]


def measure_mma(find: Measurer) -> list[Measure]:
    return find.tiled_loop("mma", "MMA warp", "mma.", r"UTC\w*MMA", find.config.k_block.mmas * find.config.consumers)


def loads_per_k_block(find: Measurer) -> int:
    return 1 + bool(find.config.problem.formats.scaled)


def measure_weight_loader(find: Measurer) -> list[Measure]:
    return find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", loads_per_k_block(find))


def measure_epilogue(find: Measurer, function: str = "") -> list[Measure]:
    """Of the epilogue warps; `function` reads the sums, by default that of a plain result."""
    load = find.accumulator_load(function or ("results." if find.config.staged else "epilogue."))
    one_pass = find.tile_loop(load)
    return [
        find.measure("epilogue_8_rows", "epilogue", "8 rows", one_pass, PASS_ROWS / TOKENS_PER_UNIT),
        find.measure("epilogue_tile", "epilogue", "tile", find.around(one_pass), 1, [one_pass]),
    ]
