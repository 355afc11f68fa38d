"""Tensor memory of a CTA."""

from __future__ import annotations

from ..hardware.tmem import TMEM_COLUMNS, TMEM_LANES
from ..kernels.moe.config import MegaMoeConfig
from .chart import Bar, BarChart, Lane, Picture
from .subject import require_sm100


def draw_tmem(config: MegaMoeConfig, tokens: int) -> Picture:
    """Raises `ConfigError` for SM90, which has none."""
    config = require_sm100(config, "tmem", "its accumulators are in tensor memory, those of sm_90a in registers")
    plan = config.tmem
    kinds = ("accumulators",) * (len(plan.fields) - 2) + ("scales", "scales")
    parts = [(one.name, one.first, one.first + one.columns, kind) for one, kind in zip(plan.fields, kinds, strict=True)]
    parts += [("allocated, unused", plan.used, plan.allocated, "free")] if plan.used < plan.allocated else []
    lanes = []
    for name, start, end, kind in parts:
        columns = f"{start}-{end - 1}"
        lanes.append(Lane(name, (Bar(start, end, kind, columns),), (columns, str(end - start))))
    note = (
        f"Columns of {TMEM_LANES} lanes x 32 bits in each CTA: {plan.used} used, {plan.allocated} allocated of {TMEM_COLUMNS}. "
        f"A lane is one of the CTA's 128 weight rows, a column one of up to {config.block_m} tokens. To scale."
    )
    return Picture("Tensor memory", note, (BarChart(tuple(lanes), plan.allocated, "columns", ("columns", "count")),))
