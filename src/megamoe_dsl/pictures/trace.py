"""Timeline of a measured launch, from the record of sums by role that `megamoe bench --trace` writes."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

from ..json_file import read_json_object
from .chart import Bar, BarChart, Lane, Picture


class TraceFileError(ValueError):
    """A file is not a trace, or has no launch of the requested point."""


def activities(record: dict[str, Any]) -> BarChart:
    """A bar for each role's activity, from its first begin to its last end, filled by a warp's average share of that time.  Raises
    `ValueError` for times outside of the launch."""
    lanes, launch = [], float(record["launch_us"])
    for role, names in record["trace"].items():
        for name, sums in names.items():
            first, last, mean = (float(sums[one]) for one in ("first", "last", "us"))
            if not (0 <= first <= last <= launch < inf and launch > 0 and 0 <= mean < inf):
                raise ValueError(f"{name}: {mean} us between {first} and {last} are not in a launch of {launch} us")
            share = min(1.0, mean / (last - first)) if last > first else 1.0
            lanes.append(Lane(str(name), (Bar(first, last, kind_of(name), share=share),), (f"{mean:.1f}",), str(role)))
    return BarChart(tuple(lanes), launch, "µs", ("µs per warp",))


KINDS = {"wait": "wait", "count": "dispatch", "pull": "pull", "combine": "combine"}


def draw_trace(path: Path, **wanted: object) -> Picture:
    """Of a file that `megamoe bench --trace` wrote; preset, tokens per rank and ranks that are not None choose one of a file's points.
    Raises `TraceFileError` for another file and for a choice of none or of several, `FileError` for a file that cannot be read."""
    found = read_json_object(path)
    try:
        gpu, date = str(found["gpu"]), str(found["date"])
        records = [(str(one["name"]), dict(one["point"]), activities(one)) for one in found["records"]]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise TraceFileError(f"{path}: not a file that `megamoe bench --trace` wrote ({type(error).__name__}: {error})") from None
    if not (records := [one for one in records if one[2].lanes]):
        raise TraceFileError(f"{path}: holds no trace")
    given = {name: value for name, value in wanted.items() if value is not None}
    fitting = [one for one in records if all(one[1].get(name) == value for name, value in given.items())]
    if len(fitting) != 1:
        asked = "".join(f" --{name} {value}" for name, value in given.items()) or " none of --preset, --tokens and --ranks"
        raise TraceFileError(f"{path}: must have one point with{asked}; it has {', '.join(name for name, *_ in records)}")
    ((name, point, chart),) = fitting
    words = [f"{point.get('preset') or name.partition(' EP')[0]}, {point.get('tokens')} tokens a rank", f"{point.get('ranks')} ranks"]
    if point.get("experts_per_rank"):
        words.append(f"{point['experts_per_rank']} experts each")
    if isinstance(remote := point.get("remote"), float):
        words.append(f"{remote:.1%} of the top-k slots on other ranks")
    note = (
        f"Measured on {gpu}, {date[:10]}: {', '.join(words)}; rank 0's launch of {chart.extent:.0f} µs, all its SMs "
        "together. A bar reaches from when the first warp began an activity to when the last one ended it; it is filled as high as the "
        f"share of that time that a warp spends on it, on average over the role's warps. From {path.stem}."
    )
    return Picture("Timeline of one launch", note, (chart,))


def kind_of(activity: str) -> str:
    """The kind of an activity, given its name, as in "wait tokens Linear1"."""
    first, *rest = activity.split()
    return KINDS.get(first, rest[-1] if rest and rest[-1] in ("Linear1", "Linear2") else "other")
