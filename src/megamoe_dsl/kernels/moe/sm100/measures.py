"""Measures of the SM100 mega kernel."""

from __future__ import annotations

from ....sass.measurer import TOKENS_PER_UNIT, Measure, Measurer

LOADS_PER_K_BLOCK = 2


def measure_sm100(find: Measurer) -> list[Measure]:
    """All measures; a K block is a stage.  Raises `InspectionError` when one is missing."""
    mmas = find.config.k_block.mmas
    return [
        *find.tiled_loop("mma", "MMA warp", "mma.", r"UTC\w*MMA", mmas),
        *find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", LOADS_PER_K_BLOCK),
        *find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", LOADS_PER_K_BLOCK),
        *measure_epilogue(find),
        find.dispatch(),
        *find.combine(),
    ]


def measure_epilogue(find: Measurer) -> list[Measure]:
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
