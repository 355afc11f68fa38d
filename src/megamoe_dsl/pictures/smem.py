"""Shared memory of a CTA: which bytes are whose, before combine and during it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..arch import SMEM_BYTES
from ..hardware.cta_pair import TMEM_COLUMNS, TMEM_LANES
from ..kernels.moe.config import MegaMoeConfig
from .chart import Bar, BarChart, Lane, Picture
from .regions import in_bytes
from .subject import require_sm100

KINDS = {
    "weights": "weights",
    "tokens": "tokens",
    "cd": "results",
    "sfa": "scales",
    "sfb": "scales",
    "pull": "pull",
    "combine_slots": "combine",
    "amax": "scales",
}
PHASES = {"main": "before combine", "combine": "during combine"}
ALWAYS = "always"
SMALLEST_PART = SMEM_BYTES / 150
BARRIER = "_barrier"


@dataclass(frozen=True)
class FieldSpan:
    """A field, or all mbarriers; `phase` is None where it is live in both."""

    name: str
    start: int
    end: int
    kind: str
    phase: str | None
    parts: int = 1

    def lane(self, group: str) -> Lane:
        """With a bar for each part, a stage of a ring or a warp's slots, where they are large enough to be told apart."""
        size = (self.end - self.start) / self.parts
        drawn = self.parts if size >= SMALLEST_PART else 1
        edges = [self.start + part * (self.end - self.start) / drawn for part in range(drawn + 1)]
        bars = tuple(Bar(*edge, self.kind, str(part) if drawn > 1 else "") for part, edge in enumerate(pairwise(edges)))
        split = f"{self.parts} x {in_bytes(int(size))}" if self.parts > 1 else ""
        return Lane(self.name, bars, (f"{self.start:,}", split, in_bytes(self.end - self.start)), group)


def spans(config: MegaMoeConfig) -> list[FieldSpan]:
    """The plan's fields, with all mbarriers as one, in the order of their offsets."""
    region = config.smem.region
    barriers = [place for place in region if place.field.name.endswith(BARRIER)]
    found = [
        FieldSpan(
            place.field.name,
            place.offset,
            place.end,
            KINDS.get(place.field.name, "control"),
            place.lifetimes[0][1] if place.lifetimes else None,
            place.field.shape[0] if len(place.field.shape) > 1 and place.field.name in KINDS else 1,
        )
        for place in region
        if place not in barriers and place.field.num_bytes
    ]
    count = sum(place.field.shape[0] for place in barriers)
    found.append(FieldSpan(f"{count} mbarriers", barriers[0].offset, barriers[-1].end, "barriers", None))
    return sorted(found, key=lambda span: span.start)


def draw_smem(config: MegaMoeConfig, tokens: int) -> Picture:
    """A lane with everything and a lane for each field, in both phases; every gap is a bar of its own."""
    fields, lanes = spans(config), list[Lane]()
    for phase, group in PHASES.items():
        live = [span for span in fields if span.phase in (None, phase)]
        gaps = [(low, high) for low, high in pairwise([0, *(edge for span in live for edge in (span.start, span.end)), SMEM_BYTES])][::2]
        free = tuple(Bar(low, high, "free", "free") for low, high in gaps if high > low)
        everything = (*(Bar(span.start, span.end, span.kind, span.name) for span in live), *free)
        used = sum(span.end - span.start for span in live)
        lanes.append(Lane("all of it", everything, ("0", "", in_bytes(used)), group))
        lanes += [span.lane(group) for span in live if span.phase]
        lanes.append(Lane("free", free, (f"{int(free[0].start):,}" if free else "", "", in_bytes(SMEM_BYTES - used)), group))
    lanes += [span.lane(ALWAYS) for span in fields if span.phase is None]
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
