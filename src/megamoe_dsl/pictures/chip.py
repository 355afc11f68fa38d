"""Pictures of on-chip memory: the SMEM plan over time, the TMEM plan."""

from __future__ import annotations

from itertools import pairwise

from ..hardware.tmem import TMEM_COLUMNS, TMEM_LANES
from ..kernels.mega_moe.sm100.config import SMEM_CAPACITY, KernelConfig
from ..kernels.mega_moe.sm100.tile import ACCUMULATORS
from .amount import in_bytes
from .chart import Bar, BarChart, Cell, Grid, Lane, Picture

KINDS = {
    "weights": "weights",
    "tokens": "tokens",
    "cd": "epilogue",
    "sfa": "scales",
    "sfb": "scales",
    "pull": "pool",
    "expert_count": "control",
    "combine_slots": "combine",
    "amax": "epilogue",
    "expert_table": "control",
    "tmem_address": "control",
}
PHASES = (("main", "dispatch, tiles"), ("combine", "combine"))


def draw_smem(config: KernelConfig, tokens: int) -> Picture:
    """Rows are address intervals between any two field boundaries, columns the phases; barriers are drawn as one field."""
    region = config.smem.region
    spans: list[tuple[int, int, str, str, str | None]] = []
    barriers = [p for p in region if p.field.name.endswith("_barrier")]
    for place in region:
        if place in barriers:
            continue
        field = place.field
        count = f" x {field.shape[0]}" if len(field.shape) > 1 else ""
        phase = place.lifetimes[0][1] if place.lifetimes else None
        spans.append((place.offset, place.end, f"{field.name}{count}, {in_bytes(field.num_bytes)}", KINDS[field.name], phase))
    total = sum(p.field.shape[0] for p in barriers)
    spans.append((barriers[0].offset, barriers[-1].end, f"{total} mbarriers", "barriers", None))
    edges = sorted({edge for start, end, *_ in spans for edge in (start, end)})
    labels, rows, heights = [], [], []
    for low, high in pairwise(edges):
        cells = []
        for phase, _ in PHASES:
            over = [s for s in spans if s[0] <= low and high <= s[1] and s[4] in (None, phase)]
            cells.append(Cell(over[0][2] if over[0][0] == low else "", over[0][3]) if over else Cell("", "free"))
        if all(cell.kind == "free" for cell in cells):
            continue
        labels.append(f"{low:,}")
        rows.append(tuple(cells))
        heights.append(max(0.8, 8 * (high - low) / region.size))
    note = (
        f"Bytes of one CTA from top to bottom, {region.size:,} of {SMEM_CAPACITY:,}, {config.num_stages} stages; time runs to the right. "
        "When every token has been pulled and every tile is finished, the combine slots take the place of the ring."
    )
    return Picture("Shared memory over time", note, (Grid(tuple(t for _, t in PHASES), tuple(labels), tuple(rows), tuple(heights)),))


def draw_tmem(config: KernelConfig, tokens: int) -> Picture:
    plan = config.tmem
    parts = [(f"accumulator {i}", plan.accumulator(i), plan.accumulator(i) + config.block_m, "epilogue") for i in range(ACCUMULATORS)]
    parts += [("token scales", plan.sfa, plan.sfb, "scales"), ("weight scales", plan.sfb, plan.used, "scales")]
    parts += [("allocated, unused", plan.used, plan.allocated, "padding")] if plan.used < plan.allocated else []
    lanes = tuple(Lane(name, (Bar(start, end, kind, f"{start}"),), (f"{start}", f"{end - start}")) for name, start, end, kind in parts)
    note = (
        f"Columns of {TMEM_LANES} lanes x 32 bits in each CTA: {plan.used} used, {plan.allocated} allocated of {TMEM_COLUMNS}. "
        f"A lane is one of the CTA's 128 weight rows, a column one of up to {config.block_m} tokens."
    )
    return Picture("Tensor memory", note, (BarChart(lanes, plan.allocated, "columns", ("first", "columns")),))
