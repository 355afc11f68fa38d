"""Tables of README.md and docs/hopper.md, from results files.

python bench/results_table.py bench/results/mega_moe_sm90-time-DATE.json [...]
python bench/results_table.py bench/results/mega_moe_sm90-trace-DATE.json [...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIME_COLUMNS = (
    *("Shape, tokens per rank", "ours: launches / graph", "baseline", "baseline / ours"),
    *("TFLOPS per rank", "ceiling", "share of it", "symmetric MiB, ours / baseline"),
)
TRACE_COLUMNS = {
    "counts": ("wait counts",),
    "stages": ("wait stage Linear1", "wait stage Linear2"),
    "multiply": ("multiply Linear1", "multiply Linear2"),
    "epilogue": ("wait store Linear1", "wait store Linear2", "epilogue Linear1", "epilogue Linear2"),
    "other SMs and ranks": ("wait ranks", "wait results"),
    "combine": ("combine",),
}


def label(record: dict[str, Any]) -> str:
    return f"{record['point']['preset'].capitalize()} {record['point']['tokens']}"


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


def table(files: Sequence[Path]) -> str:
    """All points of the files that were timed beside the baseline, or traced."""
    records = [record for file in files for record in json.loads(file.read_text())["records"]]
    if any("trace" in record for record in records):
        head, rows = ["Shape, tokens per rank", "us", "first multiply at", *TRACE_COLUMNS], [trace_cells(one) for one in records]
    else:
        head, rows = list(TIME_COLUMNS), [time_cells(one) for one in records if "baseline" in one]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    print(table([Path(one) for one in sys.argv[1:]]))
