"""A predicted launch as a timeline: for Perfetto, and as a picture of some workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..pictures import Bar, BarChart, Lane, Picture
from .prediction import Launched

PHASES = ("Linear1", "Linear2")
DRAWN = 4
TRACED = 8
TENSOR_CORE, EPILOGUE = "tensor core", "epilogue"
ALL = "all"  # The worker of what all do.


@dataclass(frozen=True)
class PredictedSpan:
    """What a role of a worker does, in microseconds since the launch began; `kind` is one of the picture's."""

    worker: str
    role: str
    name: str
    kind: str
    start: float
    end: float


def spans_of(launched: Launched, workers: int) -> list[PredictedSpan]:
    """Spans of the launch as a whole, then of the first workers' tiles in the order of the schedule."""
    run, us = launched.run, launched.us
    found = [
        PredictedSpan(ALL, "dispatch", "count", "dispatch", 0.0, launched.start),
        PredictedSpan(ALL, "dispatch", "pull", "pull", launched.start, launched.pulled),
        PredictedSpan(ALL, "dispatch", "combine", "combine", run.end, us),
    ]
    tiles = zip(run.worker.tolist(), run.is_fc2.tolist(), run.stamps.tolist(), strict=True)
    for worker, is_fc2, (free, begin, multiplied, stores, stored) in (one for one in tiles if one[0] < workers):
        name, phase = f"worker {worker}", PHASES[is_fc2]
        found += [
            PredictedSpan(name, TENSOR_CORE, f"wait {phase}", "wait", free, begin),
            PredictedSpan(name, TENSOR_CORE, f"multiply {phase}", phase, begin, multiplied),
            PredictedSpan(name, EPILOGUE, f"epilogue {phase}", phase, stores, stored),
        ]
    return [one for one in found if one.end > one.start]


def perfetto(launched: Launched) -> str:
    """JSON of Chrome's trace format, with a process per worker and a thread per role."""
    found = spans_of(launched, TRACED)
    names = {name: number for number, name in enumerate(dict.fromkeys(one.worker for one in found))}
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}} for name, number in names.items()
    ]
    events += [
        {"name": one.name, "ph": "X", "ts": one.start, "dur": one.end - one.start, "pid": names[one.worker], "tid": one.role}
        for one in found
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"source": "predicted, not measured"}})


def draw(launches: Sequence[Launched], tokens: Sequence[int], gpu: str) -> Picture:
    """A chart per launch, with so many tokens of every rank: lanes of the launch and of its first workers."""
    said = "; ".join(f"{count} tokens a rank, {one.us:.0f} µs at {one.clock:.2f} GHz" for one, count in zip(launches, tokens, strict=True))
    workers = ", ".join(map(str, dict.fromkeys(one.run.workers for one in launches)))
    note = (
        f"Predicted, not measured, for {gpu}: {said}. A worker is what takes a tile: a CTA, a cluster or a pair of CTAs. "
        f"{DRAWN} of {workers} are drawn; a bar of an epilogue has the color of its phase."
    )
    title = "Timeline of one launch" if len(launches) == 1 else f"Timelines of {len(launches)} launches"
    return Picture(title, note, tuple(map(chart_of, launches)))


def chart_of(launched: Launched) -> BarChart:
    """Lanes of the launch and of the first workers."""
    found = spans_of(launched, DRAWN)
    keys = dict.fromkeys((one.worker, one.role) for one in found)
    lanes = tuple(
        Lane(
            role,
            tuple(Bar(one.start, one.end, one.kind, one.name) for one in found if (one.worker, one.role) == (worker, role)),
            group=worker,
        )
        for worker, role in keys
    )
    return BarChart(lanes, launched.us, "µs")


def draw_choices(times: Mapping[str, float], tokens: int, gpu: str) -> Picture:
    """Microseconds of a launch by configuration."""
    note = f"Predicted, not measured, for {gpu}: a launch with {tokens} tokens of every rank."
    lanes = tuple(Lane(name, (Bar(0.0, us, "launch"),), (f"{us:.1f}",)) for name, us in times.items())
    return Picture("Configurations", note, (BarChart(lanes, max(times.values()), "µs", ("µs",)),))
