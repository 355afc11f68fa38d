"""What `megamoe bench --trace` writes: a record of sums by role for each point, and for each point a file of spans for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from ..json_file import read_json_object


class TraceFileError(ValueError):
    """A file is not a trace, or has none of the point that is asked for."""


@dataclass(frozen=True)
class DrawnActivity:
    """What the warps of a role did, in microseconds: from the first begin to the last end, and how long a warp took on average."""

    role: str
    name: str
    first: float
    last: float
    mean: float


@dataclass(frozen=True)
class TraceRecord:
    """One launch of a point, summed over all SMs.  `point` says which one, `gpu` and `date` where and when."""

    point: dict[str, Any]
    name: str
    gpu: str
    date: str
    launch: float
    activities: tuple[DrawnActivity, ...]


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
        records = [] if "traceEvents" in found else [_record(found, one) for one in found["records"]]
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


def _record(whole: dict[str, Any], one: dict[str, Any]) -> TraceRecord:
    return TraceRecord(
        dict(one["point"]), str(one["name"]), str(whole["gpu"]), str(whole["date"]), _finite(one["launch_us"]), tuple(_activities(one))
    )


def _activities(one: dict[str, Any]) -> Iterator[DrawnActivity]:
    for role, names in one["trace"].items():
        for name, sums in names.items():
            yield DrawnActivity(role, name, _finite(sums["first"]), _finite(sums["last"]), _finite(sums["us"]))


def find_record(path: Path, records: list[TraceRecord], **wanted: object) -> TraceRecord:
    """The only record whose point agrees with what is wanted; None agrees with all.  Raises `TraceFileError` with the points there are."""
    given = {name: value for name, value in wanted.items() if value is not None}
    fitting = [one for one in records if all(one.point.get(name) == value for name, value in given.items())]
    if len(fitting) != 1:
        asked = "".join(f" --{name} {value}" for name, value in given.items()) or " none of --preset, --tokens and --ranks"
        raise TraceFileError(f"{path}: must have one point with{asked}; it has {', '.join(one.name for one in records)}")
    return fitting[0]
