"""Measures of a GEMM that gathers its rows."""

from __future__ import annotations

from ...blocks.gemm.gather.gather import LANES_PER_ROW
from ...sass.measurer import Measure, Measurer
from .measures import has_loop, measure_gemm, measure_math, measure_weight_loader


def measure_gather_gemm(find: Measurer) -> list[Measure]:
    """Of the math warps, where a tile has K blocks enough for a loop, and of the warps that load.  Raises `InspectionError`."""
    config = find.config
    if not config.problem.gathers:
        return measure_gemm(find)
    copies = max(config.block_m // (config.rows.warps * 32 // LANES_PER_ROW), 1)
    return [
        *(measure_math(find) if has_loop(find) else ()),
        *find.tiled_loop("token_gather", "token gatherer", "gather.gather_tile", "LDGSTS", copies),
        *measure_weight_loader(find, config.weights.boxes),
    ]
