"""What the sums of a tile are multiplied with, in number formats that have a factor of a whole matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from cutlass import Int64

from ....device.memory import load_f32
from ..arguments import FactoredGemmArguments
from ..context import GemmContext
from ..work_tile import GemmTile


def load_factor(ctx: GemmContext, tile: GemmTile) -> Any:
    """Reads the FP32 factor of the tile's group; formats without factors have 1.0."""
    if not ctx.config.problem.has_factors:
        return 1.0
    return load_f32(cast(FactoredGemmArguments, ctx.args).factors + Int64(tile.group) * 4)


def with_factor(ctx: GemmContext, sums: Sequence[Any], factor: Any) -> Sequence[Any]:
    """Each sum, multiplied and rounded once."""
    return [value * factor for value in sums] if ctx.config.problem.has_factors else sums
