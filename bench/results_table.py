"""Tables of docs/lab/performance.md and docs/lab/hopper.md, from records.

python bench/results_table.py bench/results/mega_moe_sm90-time-DATE.json [...]
python bench/results_table.py bench/results/mega_moe_sm90-trace-DATE.json [...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from megamoe_dsl.bench.point import Point
from megamoe_dsl.kernels.moe.roofline import Load, bound_of
from result_archive import read_record

SHAPE = ("hidden", "intermediate", "experts", "topk")
"""Fields of a point that replace those of its preset; records of before there were such lack them."""
TIME_COLUMNS = (
    *("Shape, tokens per rank", "ours: launches / graph", "baseline", "baseline / ours"),
    *("TFLOPS per rank", "ceiling", "share of it", "symmetric MiB, ours / baseline"),
)
SPREAD_COLUMNS = ("Shape, tokens per rank", "ours: launches", "baseline: launches", "ours: graph", "baseline: graph")
TRACE_COLUMNS = {
    "counts": ("wait counts",),
    "stages": ("wait stage Linear1", "wait stage Linear2"),
    "multiply": ("multiply Linear1", "multiply Linear2"),
    "epilogue": ("wait store Linear1", "wait store Linear2", "epilogue Linear1", "epilogue Linear2"),
    "other SMs and ranks": ("wait ranks", "wait results"),
    "combine": ("combine",),
}


def shape_of(record: dict[str, Any]) -> str:
    """Flash, with all of its experts or a share; or H4096 I2048 E256 top6 of a shape of one's own, as in the point's name."""
    point = record["point"]
    if any(point.get(name) is not None for name in SHAPE):
        return str(record["name"]).partition(" EP")[0]
    return str(point["preset"]).capitalize()


def label(record: dict[str, Any]) -> str:
    """The shape and the tokens per rank of a record."""
    return f"{shape_of(record)} {record['point']['tokens']}"


def time_cells(record: dict[str, Any]) -> list[str]:
    """One timed point."""
    best, baseline, slowest = record["best"], record["baseline"], record["slowest_rank"]
    return [
        label(record),
        f"{best['us']:.0f} / {best['graph_us']:.0f}",
        f"{baseline['us']['median']:.0f} / {baseline['graph_us']['median']:.0f}",
        f"{best['ratio']:.2f} / {best['graph_ratio']:.2f}",
        f"{best['tflops_per_rank']:.0f}",
        f"{slowest['bound_us']:.0f} ({slowest['bound_by'].upper()})",
        f"{best['fraction_of_slowest_rank']:.2f}",
        f"{record['symmetric_bytes'] / 2**20:.0f} / {baseline['symmetric_bytes'] / 2**20:.0f}",
    ]


def trace_cells(record: dict[str, Any]) -> list[str]:
    """One traced launch: how long it took, when the first stage was full, and where a math warp's time went on average."""
    math = record["trace"]["math"]
    start = math["multiply Linear1"]["first"]
    parts = [sum(math[name]["us"] for name in names if name in math) for names in TRACE_COLUMNS.values()]
    return [label(record), f"{record['launch_us']:.0f}", f"{start:.0f}", *(f"{us:.0f}" for us in parts)]


def spread_cells(record: dict[str, Any]) -> list[str]:
    """The extremes of one timed point's repeats."""
    ours, baseline = record["variants"][record["best"]["variant"]], record["baseline"]
    times = (one[kind] for kind in ("us", "graph_us") for one in (ours, baseline))
    return [label(record), *(f"{one['low']:.0f} to {one['high']:.0f}" for one in times)]


def read(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The records of all points that were timed beside the baseline, or traced."""
    records = [
        record
        for file in files
        for record in json.loads(file.read_bytes() if file.exists() else read_record(file.parent, file.stem))["records"]
    ]
    return [record for record in records if "baseline" in record or "trace" in record]


def lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def table(files: Sequence[Path]) -> str:
    """A line per point."""
    records = read(files)
    if any("trace" in record for record in records):
        return lines(["Shape, tokens per rank", "us", "first multiply at", *TRACE_COLUMNS], map(trace_cells, records))
    return lines(TIME_COLUMNS, map(time_cells, records))


def spread_table(files: Sequence[Path]) -> str:
    """A line per point: the extremes of its repeats, as launches and as graphs."""
    return lines(SPREAD_COLUMNS, map(spread_cells, read(files)))


def short_table(files: Sequence[Path]) -> str:
    """A column per number of tokens: launches of both kernels, and their ratio."""
    points: dict[str, dict[int, dict[str, Any]]] = {}
    for record in read(files):
        points.setdefault(shape_of(record), {})[record["point"]["tokens"]] = record
    tokens = sorted({one for shape in points.values() for one in shape})
    rows: list[list[str]] = []
    for shape, records in points.items():
        rows.append([f"{shape}, ours", *(f"{records[one]['best']['us']:.0f} us" for one in tokens)])
        rows.append([f"{shape}, baseline", *(f"{records[one]['baseline']['us']['median']:.0f} us" for one in tokens)])
        rows.append([f"{shape}, baseline / ours", *(f"**{records[one]['best']['ratio']:.2f}**" for one in tokens)])
    return lines(["Tokens per rank", *map(str, tokens)], rows)


def share_table(files: Sequence[Path]) -> str:
    """A line per shape, a column per number of tokens: the slowest rank's ceiling in microseconds, by the present ceilings of the
    records' GPU, and the share of it that our launches reach."""
    found: dict[str, dict[int, str]] = {}
    for file in files:
        gpu = json.loads(file.read_text())["gpu"]
        for record in read([file]):
            slowest = record["slowest_rank"]
            load = Load(slowest["received"], slowest["touched"], slowest["remote"])
            bound = bound_of(Point(**record["point"]).problem, load, gpu)
            cell = f"{bound.bound_us:.0f} ({bound.bound_by.upper()}), {bound.bound_us / record['best']['us']:.2f}"
            found.setdefault(shape_of(record), {})[record["point"]["tokens"]] = cell
    tokens = sorted({one for cells in found.values() for one in cells})
    return lines(["Tokens per rank", *map(str, tokens)], ([shape, *(cells[one] for one in tokens)] for shape, cells in found.items()))


if __name__ == "__main__":
    named = [Path(one) for one in sys.argv[1:]]
    print(table(named))
    if "-time-" in named[0].name:
        print(f"\n{spread_table(named)}\n\n{short_table(named)}\n\n{share_table(named)}")
