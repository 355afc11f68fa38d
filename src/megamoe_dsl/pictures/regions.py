"""Pictures of buffers in global memory: workspace, symmetric buffer, and the token pool in it, whose blocks of rows experts fill."""

from __future__ import annotations

from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.layouts.symmetric import pool_blocks, pool_tokens, symmetric_buffer, workspace
from ..layouts.region import Region
from .chart import Bar, BarChart, Lane, Picture
from .subject import sample_counts


def in_bytes(count: int) -> str:
    """With a binary unit, three digits."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    raise AssertionError


KINDS = {
    "x": "inputs",
    "x_sf": "inputs",
    "topk_idx": "inputs",
    "topk_weights": "inputs",
    "fc1_sf": "scales",
    "fc2_sf": "scales",
    "combine": "results",
}
SCALE = "To scale, but for what is narrower than a line and drawn as a line."


def region_chart(region: Region, default: str) -> BarChart:
    """One lane per field, with its shape, offset and size."""
    lanes = []
    for place in region:
        field = place.field
        shape = f"{field.dtype.name} [{', '.join(map(str, field.shape))}]"
        bar = Bar(place.offset, place.end, KINDS.get(field.name, default))
        lanes.append(Lane(field.name, (bar,), (shape, f"{place.offset:,}", in_bytes(field.num_bytes))))
    return BarChart(tuple(lanes), region.size, "bytes", ("shape", "offset", "size"))


def draw_workspace(config: MegaMoeConfig, tokens: int) -> Picture:
    """The control words at the start of a rank's buffer."""
    region = workspace(config.problem, config.arch)
    size = in_bytes(region.size)
    note = f"Control words of one rank, {size}. Zero before the first launch; a launch leaves all but the counters zero. {SCALE}"
    return Picture("Workspace", note, (region_chart(region, "control"),))


def draw_symmetric(config: MegaMoeConfig, tokens: int) -> Picture:
    """A rank's whole buffer, which the others write into."""
    whole, control = symmetric_buffer(config.problem, config.arch), {p.field.name for p in workspace(config.problem, config.arch)}
    shown = [p for p in whole if p.field.name not in control]
    chart = region_chart(whole, "token pool")
    lanes = [lane for lane in chart.lanes if lane.name not in control]
    size = in_bytes(workspace(config.problem, config.arch).size)
    first = Lane("workspace", (Bar(0, shown[0].offset, "control"),), (f"{len(control)} fields", "0", size))
    most = config.problem.max_tokens_per_rank
    note = f"One rank's buffer, {in_bytes(whole.size)} for up to {most} tokens; the same offsets on every rank. {SCALE}"
    return Picture("Symmetric buffer", note, (BarChart((first, *lanes), chart.extent, chart.unit, chart.headings),))


EXPERTS = 24  # lanes of the picture


def draw_pool(config: MegaMoeConfig, tokens: int) -> Picture:
    """The first experts have a lane each; the others share one, without bars, that says how many they are."""
    counts, block_m = sample_counts(config, tokens), config.block_m
    first = pool_blocks(counts, block_m)
    shown = min(len(counts), EXPERTS)
    lanes = []
    for expert, count in enumerate(counts[:shown]):
        start, end = first[expert] * block_m, first[expert + 1] * block_m
        details = (str(count), str(first[expert]), str(end - start - count))
        lanes.append(Lane(f"expert {expert}", _blocks(start, end, count, block_m), details))
    used, rows = first[-1] * block_m, pool_tokens(config.problem)
    note = (
        f"Rows of the token pool for a sampled routing of {tokens} tokens a rank: blocks of {block_m} rows, one after "
        f"another, never shared by two experts. All {len(counts)} experts use {used:,} of {rows:,} rows, {used - sum(counts):,} of them "
        "padding."
    )
    if used > rows:
        note += " The pool is a ring: rows are used again when the results of their tokens have left."
    if shown < len(counts):
        rest, padding = sum(counts[shown:]), used - first[shown] * block_m - sum(counts[shown:])
        lanes.append(Lane(f"{len(counts) - shown} more", (), (str(rest), str(first[shown]), str(padding))))
        note += (
            f" Drawn are experts 0 to {shown - 1}; the other {len(counts) - shown}, from row {first[shown] * block_m:,} on, are left out."
        )
    extent = max(1, first[shown] * block_m)
    return Picture("Token pool", note, (BarChart(tuple(lanes), extent, "rows", ("tokens", "first block", "padding")),))


def _blocks(start: int, end: int, count: int, block_m: int) -> tuple[Bar, ...]:
    """Tokens and padding of each block of an expert."""
    bars = []
    for block in range(start, end, block_m):
        filled = min(block + block_m, start + count)
        bars += [Bar(block, filled, "tokens"), Bar(filled, block + block_m, "padding")]
    return tuple(bar for bar in bars if bar.end > bar.start)
