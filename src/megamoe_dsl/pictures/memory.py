"""Pictures of memory: workspace, symmetric buffer, the token pool whose blocks experts fill, shared and tensor memory of a CTA."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from ..arch import SMEM_BYTES
from ..config_error import ConfigError
from ..hardware.cta_pair import TMEM_COLUMNS, TMEM_LANES
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.layouts.symmetric import pool_tokens, workspace
from ..kernels.moe.sm100.config import Sm100Config
from ..layouts.region import Region
from ..schedule.fused_moe import HostTable
from .chart import Bar, BarChart, Lane, Picture


def require_sm100(config: MegaMoeConfig, picture: str, why: str) -> Sm100Config:
    """The configuration, if it is SM100's.  Raises `ConfigError` with the picture and why the other architecture has none."""
    if not isinstance(config, Sm100Config):
        raise ConfigError("arch", config.arch.name, f"sm_100a for a picture of {picture}: {why}")
    return config


def sample_counts(config: MegaMoeConfig, tokens: int, seed: int = 0) -> list[int]:
    """Tokens of each local expert, tokens * topk together; the same for every call with a seed. Approximates uniform routing: each expert
    has a normal share of what those before it have left, and no more tokens than there are on all ranks."""
    problem, random = config.problem, Random(seed)
    left, most, counts = tokens * problem.topk, tokens * problem.num_ranks, list[int]()
    for experts in range(problem.experts_per_rank, 0, -1):
        mean = left / experts
        drawn = round(random.gauss(mean, (mean * (1 - 1 / experts)) ** 0.5))
        counts.append(min(max(drawn, 0, left - most * (experts - 1)), most, left))
        left -= counts[-1]
    return counts


def in_bytes(count: int) -> str:
    """With a binary unit, three digits."""
    size, units = float(count), ["GiB", "MiB", "KiB", "B"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop()
    return f"{size:.3g} {units[-1]}" if size < 999.5 else f"{size:.0f} {units[-1]}"


KINDS = {
    "x": "inputs", "x_sf": "inputs", "topk_idx": "inputs", "topk_weights": "inputs", "fc1_sf": "scales", "fc2_sf": "scales",
    "combine": "results",
}  # fmt: skip
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
    region = workspace(config.problem, config.arch, config.pool_rows)
    size = in_bytes(region.size)
    note = f"Control words of one rank, {size}. Zero before the first launch; a launch leaves all but the counters zero. {SCALE}"
    return Picture("Workspace", note, (region_chart(region, "control"),))


def draw_symmetric(config: MegaMoeConfig, tokens: int) -> Picture:
    """A rank's whole buffer, which the others write into."""
    words = workspace(config.problem, config.arch, config.pool_rows)
    whole, control = config.symmetric, {p.field.name for p in words}
    shown = [p for p in whole if p.field.name not in control]
    chart = region_chart(whole, "token pool")
    lanes = [lane for lane in chart.lanes if lane.name not in control]
    size = in_bytes(words.size)
    first = Lane("workspace", (Bar(0, shown[0].offset, "control"),), (f"{len(control)} fields", "0", size))
    most = config.problem.max_tokens_per_rank
    note = f"One rank's buffer, {in_bytes(whole.size)} for up to {most} tokens; the same offsets on every rank. {SCALE}"
    return Picture("Symmetric buffer", note, (BarChart((first, *lanes), chart.extent, chart.unit, chart.headings),))


EXPERTS = 24  # lanes of the picture


def draw_pool(config: MegaMoeConfig, tokens: int) -> Picture:
    """A lane for each of the first `EXPERTS` experts; one lane without bars counts the rest."""
    counts, block_m = sample_counts(config, tokens), config.block_m
    first = HostTable.of(counts, block_m).first
    shown = min(len(counts), EXPERTS)
    lanes = []
    for expert, count in enumerate(counts[:shown]):
        start, end = first[expert] * block_m, first[expert + 1] * block_m
        details = (str(count), str(first[expert]), str(end - start - count))
        lanes.append(Lane(f"expert {expert}", _blocks(start, end, count, block_m), details))
    used, rows = first[-1] * block_m, pool_tokens(config.problem, config.pool_rows)
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
    bars = []
    for block in range(start, end, block_m):
        filled = min(block + block_m, start + count)
        bars += [Bar(block, filled, "tokens"), Bar(filled, block + block_m, "padding")]
    return tuple(bar for bar in bars if bar.end > bar.start)


SMEM_KINDS = {
    "weights": "weights", "tokens": "tokens", "cd": "results", "sfa": "scales", "sfb": "scales", "pull": "pull", "combine_slots": "combine",
    "amax": "scales",
}  # fmt: skip
PHASES = {"main": "before combine", "combine": "during combine"}
SMALLEST_PART = SMEM_BYTES / 150
BARRIER = "_barrier"


def parted_lane(bar: Bar, parts: int, group: str) -> Lane:
    """A field's lane, with a bar for each part, a stage of a ring or a warp's slots, where they are large enough to be told apart."""
    size = (bar.end - bar.start) / parts
    drawn = parts if size >= SMALLEST_PART else 1
    edges = [bar.start + part * (bar.end - bar.start) / drawn for part in range(drawn + 1)]
    bars = tuple(Bar(*edge, bar.kind, str(part) if drawn > 1 else "") for part, edge in enumerate(pairwise(edges)))
    split = f"{parts} x {in_bytes(int(size))}" if parts > 1 else ""
    return Lane(bar.label, bars, (f"{int(bar.start):,}", split, in_bytes(int(bar.end - bar.start))), group)


def draw_smem(config: MegaMoeConfig, tokens: int) -> Picture:
    """A lane with everything and a lane for each field, in both phases, and for all mbarriers as one; every gap is a bar of its own."""
    region, fields, lanes = config.smem.region, list[tuple[Bar, int, str | None]](), list[Lane]()
    barriers = [place for place in region if place.field.name.endswith(BARRIER)]
    for place in region:
        name, shape = place.field.name, place.field.shape
        if place not in barriers and place.field.num_bytes:
            parts = shape[0] if len(shape) > 1 and name in SMEM_KINDS else 1
            phase = place.lifetimes[0][1] if place.lifetimes else None  # None: live in both
            fields.append((Bar(place.offset, place.end, SMEM_KINDS.get(name, "control"), name), parts, phase))
    count = sum(place.field.shape[0] for place in barriers)
    fields.append((Bar(barriers[0].offset, barriers[-1].end, "barriers", f"{count} mbarriers"), 1, None))
    fields.sort(key=lambda one: one[0].start)
    for phase, group in PHASES.items():
        live = [bar for bar, _, own in fields if own in (None, phase)]
        gaps = [(low, high) for low, high in pairwise([0, *(edge for bar in live for edge in (bar.start, bar.end)), SMEM_BYTES])][::2]
        free = tuple(Bar(low, high, "free", "free") for low, high in gaps if high > low)
        used = int(sum(bar.end - bar.start for bar in live))
        lanes.append(Lane("all of it", (*live, *free), ("0", "", in_bytes(used)), group))
        lanes += [parted_lane(bar, parts, group) for bar, parts, own in fields if own == phase]
        lanes.append(Lane("free", free, (f"{int(free[0].start):,}" if free else "", "", in_bytes(SMEM_BYTES - used)), group))
    lanes += [parted_lane(bar, parts, "always") for bar, parts, own in fields if own is None]
    note = (
        f"Bytes of one CTA, {config.smem.region.size:,} of {SMEM_BYTES:,} allocated, {config.num_stages} stages. When every token has "
        "been pulled and every tile is finished, the combine slots take the place of the ring. To scale, but for fields narrower than a "
        "line, which are drawn as a line; numbers in bars count stages and warps. Free is what no field of the phase uses, alignment "
        "included."
    )
    return Picture("Shared memory over time", note, (BarChart(tuple(lanes), SMEM_BYTES, "bytes", ("offset", "parts", "size")),))


def draw_tmem(config: MegaMoeConfig, tokens: int) -> Picture:
    """Raises `ConfigError` for SM90, which has none."""
    config = require_sm100(config, "tmem", "its accumulators are in tensor memory, those of sm_90a in registers")
    plan = config.tmem
    kinds = ["scales" if one.name.endswith("scales") else "accumulators" for one in plan.fields]
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
