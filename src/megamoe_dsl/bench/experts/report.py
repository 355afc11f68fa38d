"""A run's records as a table for the documentation: the layer as it is chosen by default."""

from __future__ import annotations

from typing import Any

from ..gemm.report import number

OURS, THEIRS = ("ours", "TFLOPS", "route", "Linear1", "Linear2", "sum"), ("copy, DeepGEMM Linear1", "theirs / our Linear1")
HEADINGS = ("Tokens", *OURS, "torch, BF16", "torch / ours", *THEIRS)


def row(record: dict[str, Any]) -> list[str]:
    """Cells of a point: microseconds in CUDA graphs."""
    us = {name: float(one["median"]) for name, one in record["us"].items()}
    ours = us["ours, chosen"]
    launches = [number(us[name]) for name in ("route", "fc1, chosen", "fc2", "sum")]
    torch = us.get("torch bf16")
    theirs = us.get("permute, deep_gemm fc1")
    beside_torch = ["", ""] if torch is None else [number(torch), f"**{torch / ours:.2f}**"]
    beside = ["", ""] if theirs is None else [number(theirs), f"**{theirs / us['fc1, chosen']:.2f}**"]
    return [str(record["tokens"]), number(ours), f"{record['flop'] / ours / 1e6:.0f}", *launches, *beside_torch, *beside]


def markdown(records: list[dict[str, Any]]) -> str:
    """A row for each point that was right."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(row(one) for one in records if one["passed"])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
