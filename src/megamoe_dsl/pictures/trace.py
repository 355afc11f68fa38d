"""A timeline of one launch, as it was measured: phases of all SMs from a record, or single tiles of one SM from its spans.

`megamoe bench --trace` writes a record of sums by role for each point, and for each point a file of spans for Perfetto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from ..json_file import read_json_object
from .chart import Bar, BarChart, Lane, Picture


class TraceFileError(ValueError):
    """A file is not a trace, or has no launch of the requested point."""


@dataclass(frozen=True)
class TraceRecord:
    """One launch of a point, summed over all SMs, in microseconds.  `point` says which one, `gpu` and `date` where and when."""

    point: dict[str, Any]
    name: str
    gpu: str
    date: str
    launch: float
    activities: tuple[Lane, ...]


@dataclass(frozen=True)
class TracedSpan:
    """What one warp did, in microseconds since the launch's first stamp."""

    sm: int
    warp: str
    name: str
    start: float
    end: float


def read_trace(path: Path) -> list[TraceRecord] | list[TracedSpan]:
    """Records or spans, whichever the file holds.  Raises `TraceFileError` for another file, `FileError` for one that cannot be read."""
    found = read_json_object(path)
    try:
        spans = [_span(event) for event in found["traceEvents"]] if "traceEvents" in found else []
        records = [
            TraceRecord(
                dict(one["point"]), str(one["name"]), str(found["gpu"]), str(found["date"]), _finite(one["launch_us"]), activities(one)
            )
            for one in ([] if "traceEvents" in found else found["records"])
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise TraceFileError(f"{path}: not a file that `megamoe bench --trace` wrote ({type(error).__name__}: {error})") from None
    if not spans and not any(one.activities for one in records):
        raise TraceFileError(f"{path}: holds no trace")
    return spans or [one for one in records if one.activities]


def _finite(value: Any) -> float:
    """A time.  Raises ValueError for one that cannot be drawn."""
    if not isfinite(number := float(value)):
        raise ValueError(f"{number} is no time")
    return number


def _span(event: dict[str, Any]) -> TracedSpan:
    start = _finite(event["ts"])
    end = start + _finite(event["dur"])
    if end < start:
        raise ValueError(f"{event['dur']} is no duration")
    return TracedSpan(int(event["pid"]), str(event["tid"]), str(event["name"]), start, end)


def activities(record: dict[str, Any]) -> tuple[Lane, ...]:
    """What the warps of each role did: from the first begin to the last end, filled as high as a warp's average share of that time."""
    lanes = []
    for role, names in record["trace"].items():
        for name, sums in names.items():
            first, last, mean = (_finite(sums[one]) for one in ("first", "last", "us"))
            share = min(1.0, mean / (last - first)) if last > first else 1.0
            lanes.append(Lane(str(name), (Bar(first, last, kind_of(name), share=share),), (f"{mean:.1f}",), str(role)))
    return tuple(lanes)


def find_record(path: Path, records: list[TraceRecord], **wanted: object) -> TraceRecord:
    """The only record whose point agrees with what is wanted; None agrees with all.  Raises `TraceFileError` with the points there are."""
    given = {name: value for name, value in wanted.items() if value is not None}
    fitting = [one for one in records if all(one.point.get(name) == value for name, value in given.items())]
    if len(fitting) != 1:
        asked = "".join(f" --{name} {value}" for name, value in given.items()) or " none of --preset, --tokens and --ranks"
        raise TraceFileError(f"{path}: must have one point with{asked}; it has {', '.join(one.name for one in records)}")
    return fitting[0]


KINDS = {"wait": "wait", "count": "dispatch", "pull": "pull", "combine": "combine"}
SMS = 2  # of a file of spans
SLIVER = 1 / 600  # of the launch: neighbors of one kind that are shorter are drawn as one


def draw_trace(path: Path, *, preset: str | None = None, tokens: int | None = None, ranks: int | None = None) -> Picture:
    """Of a file that `megamoe bench --trace` wrote; preset, tokens per rank and ranks choose one of a file's records.  Raises
    `TraceFileError` for another file and for a choice of none or of several, OSError for a file that cannot be read."""
    found = read_trace(path)
    spans = [one for one in found if isinstance(one, TracedSpan)]
    if spans:
        return _draw_spans(spans, path.stem)
    records = [one for one in found if isinstance(one, TraceRecord)]
    return _draw_record(find_record(path, records, preset=preset, tokens=tokens, ranks=ranks), path.stem)


def kind_of(activity: str) -> str:
    """The kind of an activity, given its name, as in "wait tokens Linear1"."""
    first, *rest = activity.split()
    return KINDS.get(first, rest[-1] if rest and rest[-1] in ("Linear1", "Linear2") else "other")


def _draw_record(record: TraceRecord, source: str) -> Picture:
    note = (
        f"Measured on {record.gpu}, {record.date[:10]}: {_in_words(record)}; rank 0's launch of {record.launch:.0f} µs, all its SMs "
        "together. A bar reaches from when the first warp began an activity to when the last one ended it; it is filled as high as the "
        f"share of that time that a warp spends on it, on average over the role's warps. From {source}."
    )
    return Picture("Timeline of one launch", note, (BarChart(record.activities, record.launch, "µs", ("µs per warp",)),))


def _in_words(record: TraceRecord) -> str:
    point = record.point
    shape = point.get("preset") or record.name.partition(" EP")[0]
    words = [f"{shape}, {point.get('tokens')} tokens a rank", f"{point.get('ranks')} ranks"]
    if point.get("experts_per_rank"):
        words.append(f"{point['experts_per_rank']} experts each")
    remote = point.get("remote")
    if isinstance(remote, float):
        words.append(f"{remote:.1%} of the top-k slots on other ranks")
    return ", ".join(words)


def _draw_spans(spans: list[TracedSpan], source: str) -> Picture:
    """Of the first SMs the first warp of each role, which are the same warps' names in every SM."""
    sms = sorted({one.sm for one in spans})
    extent = max(one.end for one in spans)
    lanes = []
    for sm in sms[:SMS]:
        warps = sorted({one.warp for one in spans if one.sm == sm})
        first = {_role(warp): warp for warp in reversed(warps)}
        for role, warp in sorted(first.items(), key=lambda entry: entry[1]):
            mine = sorted((one for one in spans if (one.sm, one.warp) == (sm, warp)), key=lambda one: one.start)
            lanes.append(Lane(role, tuple(_merged(mine, extent * SLIVER)), group=f"SM {sm}"))
    note = (
        f"Measured: the stamps of one launch of {extent:.0f} µs, on the first {min(SMS, len(sms))} of the {len(sms)} SMs in {source}, of "
        "each role the first warp. Neighbors of one kind are drawn as one where they are too short to see."
    )
    return Picture("Timeline of one launch", note, (BarChart(tuple(lanes), extent, "µs"),))


def _role(warp: str) -> str:
    return warp.split(maxsplit=1)[-1].replace("_", " ")


def _merged(spans: list[TracedSpan], sliver: float) -> Iterator[Bar]:
    last: Bar | None = None
    for one in spans:
        bar = Bar(one.start, one.end, kind_of(one.name), one.name)
        if last is not None and last.kind == bar.kind and bar.end - bar.start < sliver:
            last = Bar(last.start, bar.end, last.kind, last.label)
            continue
        if last is not None:
            yield last
        last = bar
    if last is not None:
        yield last
