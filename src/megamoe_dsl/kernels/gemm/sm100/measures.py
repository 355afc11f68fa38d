"""Measures of the SM100 GEMM kernel."""

from __future__ import annotations

from ....sass.measurer import TOKENS_PER_UNIT, Measure, Measurer
from .config import PASS_ROWS

LOADS_PER_K_BLOCK = 2


def measure_pair_gemm(find: Measurer) -> list[Measure]:
    """All measures; a K block is a stage.  Raises `InspectionError` when one is missing."""
    config = find.config
    mmas = config.k_block.words * len(config.mma.scale_ids)
    load = find.accumulator_load("results." if config.staged else "epilogue.")
    one_pass = find.tile_loop(load)
    return [
        *find.tiled_loop("mma", "MMA warp", "mma.", r"UTC\w*MMA", mmas),
        *find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", LOADS_PER_K_BLOCK),
        *find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", LOADS_PER_K_BLOCK),
        find.measure("epilogue_8_rows", "epilogue", "8 rows", one_pass, PASS_ROWS / TOKENS_PER_UNIT),
        find.measure("epilogue_tile", "epilogue", "tile", find.around(one_pass), 1, [one_pass]),
    ]
