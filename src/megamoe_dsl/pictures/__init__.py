"""Pictures of layouts and schedules, for a terminal (rich) and as SVG (drawsvg): one description, two renderers."""

from __future__ import annotations

from collections.abc import Callable

from ..kernels.mega_moe.sm100.config import KernelConfig
from .buffers import draw_pool, draw_symmetric, draw_workspace
from .chart import Bar, BarChart, Cell, Grid, Lane, Picture
from .chip import draw_smem, draw_tmem
from .orders import draw_scales, draw_swizzle
from .schedule import draw_schedule
from .svg import to_svg
from .terminal import render

PICTURES: dict[str, Callable[[KernelConfig, int], Picture]] = {
    "workspace": draw_workspace,
    "symmetric": draw_symmetric,
    "pool": draw_pool,
    "smem": draw_smem,
    "tmem": draw_tmem,
    "scales": draw_scales,
    "swizzle": draw_swizzle,
    "schedule": draw_schedule,
}
"""Name to the function that describes it, for a configuration and the number of tokens a rank has."""

__all__ = ["PICTURES", "Bar", "BarChart", "Cell", "Grid", "Lane", "Picture", "render", "to_svg"]
