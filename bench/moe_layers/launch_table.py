"""The table by which `MoE` chooses launches on one GPU, from a record of bench/experts.py."""

from __future__ import annotations

import json
from pathlib import Path

from megamoe_dsl.tuned import LaunchEntry, Table
from moe_layers.point import find_points

FUSED, FOUR = "fused", "ours, chosen"
"""Names of a record's times."""


def write_launch_table(record: Path, folder: Path) -> Path:
    """Adds the points of a record that have both times to its GPU's table in a folder; returns the table's path."""
    content = json.loads(record.read_text())
    table = Table.read(content["gpu"], folder, LaunchEntry)
    for one in content["records"]:
        if FUSED not in one["us"]:
            continue
        (point,) = find_points([one["point"]])
        layer, us = point.layer, {"mega_moe": round(one["us"][FUSED]["median"], 1), "moe": round(one["us"][FOUR]["median"], 1)}
        shape = layer.hidden, layer.intermediate, layer.num_experts, layer.topk
        table = table.having(LaunchEntry(*shape, point.tokens, us, record.name, layer.recipe))
    return table.write(folder)
