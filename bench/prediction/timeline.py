"""A predicted launch as a timeline: for Perfetto, and as a picture of some workers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from megamoe_dsl.pictures import Bar, BarChart, Lane, Picture

from .prediction import Launched

PHASES = ("Linear1", "Linear2")
DRAWN = 4
TRACED = 8
TENSOR_CORE, EPILOGUE = "tensor core", "epilogue"
ALL = "all"  # Group of roles of the whole launch.


def lanes_of(launched: Launched, workers: int) -> tuple[Lane, ...]:
    """Bars in microseconds since the begin of the launch: roles of the whole launch, then of its first workers."""
    found: dict[tuple[str, str], list[Bar]] = {}

    def add(worker: str, role: str, name: str, kind: str, start: float, end: float) -> None:
        if end > start:
            found.setdefault((worker, role), []).append(Bar(start, end, kind, name))

    run = launched.run
    add(ALL, "dispatch", "count", "dispatch", 0.0, launched.start)
    add(ALL, "dispatch", "pull", "pull", launched.start, launched.pulled)
    add(ALL, "dispatch", "combine", "combine", run.end, launched.us)
    tiles = zip(run.worker.tolist(), run.is_fc2.tolist(), run.stamps.tolist(), strict=True)
    for worker, is_fc2, (free, begin, multiplied, stores, stored) in (one for one in tiles if one[0] < workers):
        name, phase = f"worker {worker}", PHASES[is_fc2]
        add(name, TENSOR_CORE, f"wait {phase}", "wait", free, begin)
        add(name, TENSOR_CORE, f"multiply {phase}", phase, begin, multiplied)
        add(name, EPILOGUE, f"epilogue {phase}", phase, stores, stored)
    return tuple(Lane(role, tuple(bars), group=worker) for (worker, role), bars in found.items())


def perfetto(launched: Launched) -> str:
    """JSON of Chrome's trace format, with a process per worker and a thread per role."""
    lanes = lanes_of(launched, TRACED)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(lane.group for lane in lanes))}
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}} for name, number in numbers.items()
    ]
    events += [
        {"name": bar.label, "ph": "X", "ts": bar.start, "dur": bar.end - bar.start, "pid": numbers[lane.group], "tid": lane.name}
        for lane in lanes
        for bar in lane.bars
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"source": "predicted, not measured"}})


def draw(launches: Sequence[Launched], gpu: str) -> Picture:
    """A chart per launch, with lanes of the launch and of its first workers."""
    said = "; ".join(f"{one.subject.load.tokens} tokens a rank, {one.us:.0f} µs at {one.clock:.2f} GHz" for one in launches)
    workers = ", ".join(map(str, dict.fromkeys(one.run.workers for one in launches)))
    note = (
        f"Predicted, not measured, for {gpu}: {said}. A worker is what takes a tile: a CTA, a cluster or a pair of CTAs. "
        f"{DRAWN} of {workers} are drawn; a bar of an epilogue has the color of its phase."
    )
    title = "Timeline of one launch" if len(launches) == 1 else f"Timelines of {len(launches)} launches"
    return Picture(title, note, tuple(BarChart(lanes_of(one, DRAWN), one.us, "µs") for one in launches))
