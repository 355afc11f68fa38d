"""The README's table of the Hopper kernel, from results files.

python bench/results_table.py bench/results/mega_moe_sm90-time-DATE.json [...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    *("Shape, tokens per rank", "ours: launches / graph", "peer", "peer / ours"),
    *("TFLOPS per rank", "ceiling", "share of it", "symmetric MiB, ours / peer"),
)


def line(record: dict[str, Any]) -> str:
    """One point."""
    point, best, peer, slowest = record["point"], record["best"], record["peer"], record["slowest_rank"]
    cells = (
        f"{point['preset'].capitalize()} {point['tokens']}",
        f"{best['us']:.0f} / {best['graph_us']:.0f}",
        f"{peer['us']['median']:.0f} / {peer['graph_us']['median']:.0f}",
        f"{best['ratio']:.2f} / {best['graph_ratio']:.2f}",
        f"{best['tflops_per_rank']:.0f}",
        f"{slowest['bound_us']:.0f} ({slowest['bound_by'].upper()})",
        f"{best['fraction_of_slowest_rank']:.2f}",
        f"{record['symmetric_bytes'] / 2**20:.0f} / {peer['symmetric_bytes'] / 2**20:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def table(files: Sequence[Path]) -> str:
    """All points of the files that were timed beside the peer."""
    records = [record for file in files for record in json.loads(file.read_text())["records"]]
    head = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*head, *(line(record) for record in records if "peer" in record)])


if __name__ == "__main__":
    print(table([Path(one) for one in sys.argv[1:]]))
