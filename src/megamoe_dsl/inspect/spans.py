"""Activities of a traced kernel's warps: spans from its time stamps, sums by role and activity, and a file for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ..layouts.records import TILE_ACTIVITIES, Activity, Role

DRAWN_SMS = 4
PHASES = ("Linear1", "Linear2")


@dataclass(frozen=True)
class Span:
    """An activity of one warp from `start` to `end`, in microseconds since the launch's first stamp on this rank."""

    sm: int
    warp: int
    role: Role
    activity: Activity
    detail: int
    start: float
    end: float

    @property
    def name(self) -> str:
        """The activity in lower case, followed by the linear if it works on a tile."""
        phase = f" {PHASES[self.detail & 1]}" if self.activity in TILE_ACTIVITIES else ""
        return self.activity.name.lower().replace("_", " ") + phase


def spans_of(stamps: torch.Tensor) -> Iterator[Span]:
    """Spans of a trace, int64 [num_sms, warps, stamps, 2] as `layouts.records` has it."""
    stamps = stamps.cpu()
    written = (stamps[..., 0] != 0).cumprod(-1).bool()
    if not written.any():
        return
    origin = int(stamps[..., 0][written].min())
    for sm, warp in written.any(-1).nonzero().tolist():
        rows = stamps[sm, warp, : int(written[sm, warp].sum())].tolist()
        (last, first), *others = rows
        role = Role(first >> 32)
        for time, word in others:
            yield Span(sm, warp, role, Activity(word & 0xFFFFFFFF), word >> 32, (last - origin) / 1e3, (time - origin) / 1e3)
            last = time


def summarize(spans: Iterable[Span]) -> dict[str, dict[str, dict[str, float]]]:
    """By role and activity: `us` and `spans` per warp on average, and the `first` begin and `last` end over all warps."""
    found: dict[tuple[Role, str], list[Span]] = {}
    warps: dict[Role, set[tuple[int, int]]] = {}
    for span in spans:
        found.setdefault((span.role, span.name), []).append(span)
        warps.setdefault(span.role, set()).add((span.sm, span.warp))
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for (role, name), some in sorted(found.items(), key=lambda entry: (entry[0][0], min(one.start for one in entry[1]))):
        summary.setdefault(role.name.lower().replace("_", " "), {})[name] = {
            "us": sum(one.end - one.start for one in some) / len(warps[role]),
            "spans": len(some) / len(warps[role]),
            "first": min(one.start for one in some),
            "last": max(one.end for one in some),
        }
    return summary


def write_perfetto(path: Path, spans: Iterable[Span]) -> None:
    """A Chrome trace of a few CTAs: a process per SM, a thread per warp."""
    events = []
    for one in (span for span in spans if span.sm < DRAWN_SMS):
        place = {"pid": one.sm, "tid": f"{one.warp:02d} {one.role.name.lower()}", "args": {"block": one.detail >> 1}}
        events.append({"name": one.name, "ph": "X", "ts": one.start, "dur": one.end - one.start, **place})
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
