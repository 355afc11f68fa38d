"""Pictures of layouts and schedules, for a terminal (rich) and as SVG (drawsvg): one description, two renderers."""

from __future__ import annotations

from collections.abc import Callable

from ..kernels.moe.config import MegaMoeConfig
from .chart import Bar, BarChart, Lane, Picture
from .memory import draw_pool, draw_smem, draw_symmetric, draw_tmem, draw_workspace
from .orders import draw_fragments, draw_scales, draw_schedule, draw_swizzle
from .svg import to_svg
from .terminal import render
from .trace import TraceFileError, draw_trace

PICTURES: dict[str, Callable[[MegaMoeConfig, int], Picture]] = {
    "workspace": draw_workspace, "symmetric": draw_symmetric, "pool": draw_pool, "smem": draw_smem, "tmem": draw_tmem,
    "scales": draw_scales, "swizzle": draw_swizzle, "fragments": draw_fragments, "schedule": draw_schedule,
}  # fmt: skip
"""Name to the function that describes it, for a configuration of either architecture and the number of tokens a rank has.  Raises
`ConfigError` where an architecture has nothing of the kind."""

__all__ = ["PICTURES", "Bar", "BarChart", "Lane", "Picture", "TraceFileError", "draw_trace", "render", "to_svg"]
