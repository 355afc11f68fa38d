"""A run's records as a table for the documentation."""

from __future__ import annotations

from typing import Any

from megamoe_dsl.blocks.gemm.problem import GEMM_RECIPES, GemmProblem

BASELINE = "deep_gemm"
HEADINGS = ("Point", "ours", "TFLOPS", "tile", "DeepGEMM", "its launches early", "DeepGEMM / ours", "torch")
DECODED_HEADINGS = ("Point", "4 bits", "tile", "FP8", "FP8 / 4 bits")


def graph_us(kernel: dict[str, Any]) -> float:
    """Microseconds in a CUDA graph."""
    return float(kernel["graph_us"]["median"])


def fastest(record: dict[str, Any]) -> dict[str, Any]:
    """Of ours those that passed their check."""
    return min((one for one in record["kernels"] if one["config"] is not None and one["check"]["passed"]), key=graph_us)


def decoded_row(record: dict[str, Any]) -> list[str]:
    """Cells of a point whose weights are decoded: the fastest kernel, and that of weights of 8 bits at the same point."""
    best, name = fastest(record), record["name"].removesuffix(f" {record['problem']['recipe']}")
    usual = min(graph_us(one) for one in record["kernels"] if one["kernel"].startswith(GEMM_RECIPES[0]))
    config, us = best["config"], graph_us(best)
    tile = f"{config['block_m']} x {config['block_n']}" + (", halves of K" if config["split_k"] else "")
    return [name, number(us), tile, number(usual), f"**{usual / us:.2f}**"]


def row(record: dict[str, Any]) -> list[str]:
    """Cells of a point: the fastest of ours, and the faster of the baseline's two ways in the ratio."""
    kernels, best = record["kernels"], fastest(record)
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
    """A row for each point that ran; points with weights that are decoded have columns of their own, and come without others."""
    ran = [one for one in records if "error" not in one]
    decoded = any(GemmProblem(**one["problem"]).decodes for one in ran)
    headings, cells_of = (DECODED_HEADINGS, decoded_row) if decoded else (HEADINGS, row)
    lines = [headings, ("---",) * len(headings), *map(cells_of, ran)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
