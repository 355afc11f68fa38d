"""What lies between a layer's launches, beside what sorted blocks and copies of tokens would take, from a run's records."""

from __future__ import annotations

from typing import Any

from megamoe_dsl.blocks.gemm.problem import SCALE_BLOCK, SORTED_BLOCKED
from megamoe_dsl.kernels.expert_layer import ExpertLayer, workspace
from moe_layers.point import find_points

HEADINGS = ("Tokens", "ours, MiB", "copied, sorted and blocked, MiB", "ratio", "of the latter padding")
MIB = 1 << 20


def blocked_bytes(layer: ExpertLayer, rows: int) -> int:
    """Of so many rows in blocks: tokens copied in E4M3 with scales, gate and up in BF16, their product in E4M3 with scales, and results in
    BF16."""

    def quantized(channels: int) -> int:
        return channels + channels // SCALE_BLOCK * 4

    return rows * (quantized(layer.hidden) + 2 * 2 * layer.intermediate + quantized(layer.intermediate) + 2 * layer.hidden)


def row(record: dict[str, Any]) -> list[str]:
    """Cells of a point."""
    (point,) = find_points([record["point"]])
    rows = record["rows"]
    ours, blocked = workspace(point.layer, point.tokens).size, blocked_bytes(point.layer, rows[SORTED_BLOCKED])
    padding = 1 - rows["packed"] / rows[SORTED_BLOCKED]
    return [str(point.tokens), f"{ours / MIB:.1f}", f"{blocked / MIB:.0f}", f"{blocked / ours:.1f}", f"{padding:.0%}"]


def memory_table(records: list[dict[str, Any]]) -> str:
    """A row for each point."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(row, records)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
