"""A run's records as a table for the documentation."""

from __future__ import annotations

from typing import Any

BASELINE = "deep_gemm"
HEADINGS = ("Point", "ours", "TFLOPS", "tile", "DeepGEMM", "its launches early", "DeepGEMM / ours", "torch")


def graph_us(kernel: dict[str, Any]) -> float:
    """Microseconds in a CUDA graph."""
    return float(kernel["graph_us"]["median"])


def row(record: dict[str, Any]) -> list[str]:
    """Cells of a point: the fastest of ours that passed its check, and the faster of the baseline's two ways in the ratio."""
    kernels = record["kernels"]
    best = min((one for one in kernels if one["config"] is not None and one["check"]["passed"]), key=graph_us)
    theirs = {one["kernel"].endswith("pdl"): graph_us(one) for one in kernels if one["kernel"].startswith(BASELINE)}
    torch = [graph_us(one) for one in kernels if one["kernel"].startswith("torch")]
    flop = float(best["tflops"]) * float(best["us"]["median"]) * 1e6
    config = best["config"]
    tile = f"{config['block_m']} x {config['block_n']}" + (", pairs" if config["cluster"] == 2 else "")
    us = graph_us(best)
    beside = [number(theirs[early]) if theirs else "" for early in (False, True)]
    ratio = f"**{min(theirs.values()) / us:.2f}**" if theirs else ""
    return [record["name"], number(us), f"{flop / us / 1e6:.0f}", tile, *beside, ratio, number(torch[0]) if torch else ""]


def number(us: float) -> str:
    """Three digits or four."""
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def markdown(records: list[dict[str, Any]]) -> str:
    """A row for each point that ran."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(row(one) for one in records if "error" not in one)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
