"""Pictures of global memory: workspace, symmetric buffer, pool."""

from __future__ import annotations

from random import Random

from ..kernels.mega_moe.layouts.pool import pool_blocks
from ..kernels.mega_moe.layouts.symmetric import symmetric_buffer
from ..kernels.mega_moe.layouts.workspace import pool_tokens, workspace
from ..kernels.mega_moe.sm100.config import KernelConfig
from ..layouts.region import Region
from .amount import in_bytes
from .chart import Bar, BarChart, Lane, Picture

KINDS = {"x": "input", "x_sf": "scales", "topk_idx": "input", "topk_weights": "input", "l1_sf": "scales", "l2_sf": "scales"}
POOL_EXPERTS = 24  # lanes of the pool's picture


def region_chart(region: Region, kinds: dict[str, str], default: str) -> BarChart:
    """One lane per field, with its shape, offset and size."""
    lanes = []
    for place in region:
        field = place.field
        shape = f"{field.dtype.name} [{', '.join(map(str, field.shape))}]"
        bar = Bar(place.offset, place.end, kinds.get(field.name, default))
        lanes.append(Lane(field.name, (bar,), (shape, f"{place.offset:,}", in_bytes(field.num_bytes))))
    return BarChart(tuple(lanes), region.size, "bytes", ("shape", "offset", "size"))


def draw_workspace(config: KernelConfig, tokens: int) -> Picture:
    region = workspace(config.problem)
    note = f"Control words of one rank, {in_bytes(region.size)}. Zero before the first launch; a launch leaves all but the counters zero."
    return Picture("Workspace", note, (region_chart(region, {}, "control"),))


def draw_symmetric(config: KernelConfig, tokens: int) -> Picture:
    whole, control = symmetric_buffer(config.problem), {p.field.name for p in workspace(config.problem)}
    kinds = dict.fromkeys(control, "control") | KINDS | {"combine": "output"}
    shown = [p for p in whole if p.field.name not in control]
    chart = region_chart(whole, kinds, "pool")
    lanes = [lane for lane in chart.lanes if lane.name not in control]
    first = Lane(
        "workspace", (Bar(0, shown[0].offset, "control"),), (f"{len(control)} fields", "0", in_bytes(workspace(config.problem).size))
    )
    note = (
        f"One rank's buffer, {in_bytes(whole.size)} for up to {config.problem.max_tokens_per_rank} tokens; the same offsets on every rank."
    )
    return Picture("Symmetric buffer", note, (BarChart((first, *lanes), chart.extent, chart.unit, chart.headings),))


def sample_counts(config: KernelConfig, tokens: int, seed: int = 0) -> list[int]:
    """Tokens of each local expert, tokens * topk together, as many as a rank sends; the same for every call with a seed.

    A normal approximation of uniform routing: each expert's share of what the experts before it have left.  No expert has more tokens than
    there are on all ranks, for a token names it once.
    """
    problem, random = config.problem, Random(seed)
    left, most, counts = tokens * problem.topk, tokens * problem.num_ranks, list[int]()
    for experts in range(problem.experts_per_rank, 0, -1):
        mean = left / experts
        drawn = round(random.gauss(mean, (mean * (1 - 1 / experts)) ** 0.5))
        counts.append(min(max(drawn, 0, left - most * (experts - 1)), most, left))
        left -= counts[-1]
    return counts


def draw_pool(config: KernelConfig, tokens: int) -> Picture:
    counts, block_m = sample_counts(config, tokens), config.block_m
    first = pool_blocks(counts, block_m)
    shown = min(len(counts), POOL_EXPERTS)
    extent = max(1, first[shown] * block_m)
    lanes = []
    for expert, count in enumerate(counts[:shown]):
        start, end = first[expert] * block_m, first[expert + 1] * block_m
        bars = tuple(
            part
            for block in range(start, end, block_m)
            for part in (
                Bar(block, min(block + block_m, start + count), "pool", f"{block // block_m}"),
                Bar(min(block + block_m, start + count), block + block_m, "padding"),
            )
            if part.end > part.start
        )
        lanes.append(Lane(f"expert {expert}", bars, (str(count), f"{first[expert]}", f"{end - start - count}")))
    used, rows = first[-1] * block_m, pool_tokens(config.problem)
    note = (
        f"Rows of the token pool for a sampled routing of {tokens} tokens a rank: blocks of {block_m} rows, never shared by two experts. "
        f"All {len(counts)} experts use {used:,} of {rows:,} rows, {used - sum(counts):,} of them padding."
    )
    return Picture("Token pool", note, (BarChart(tuple(lanes), extent, "rows", ("tokens", "first block", "padding")),))
