"""Records of bench/fusion_gain.py as a table and a picture for the documentation."""

from __future__ import annotations

from typing import Any

from megamoe_dsl.bench.point import FP8

STAGES = {"moe_dispatch": "dispatch", "moe_fc1": "Linear1", "moe_swiglu": "SwiGLU", "moe_fc2": "Linear2", "moe_combine": "combine"}
LETTERS = dict(zip(STAGES, "d1s2c", strict=True))
HEADINGS = ("Point", "fused", "unfused", "unfused / fused", *STAGES.values(), "J fused", "J unfused")
WIDTH = 60  # characters of the fused kernel's bar


def graph_us(record: dict[str, Any], which: str) -> float:
    """Microseconds in a CUDA graph."""
    return float(record["graph_us"][which]["median"])


def name_of(record: dict[str, Any]) -> str:
    """Flash, 512; with number formats that are not FP8's in brackets"""
    point = record["point"]
    formats = "" if point["recipe"] == FP8 else f" ({point['recipe']})"
    return f"{(point['preset'] or 'own').capitalize()}, {point['tokens']}{formats}"


def row(record: dict[str, Any]) -> list[str]:
    """Cells of a point."""
    joules = record["joules"]
    energy = ["", ""] if joules is None else [f"{joules[which]:.2f}" for which in ("fused", "unfused")]
    times = [graph_us(record, "fused"), graph_us(record, "unfused")]
    stages = [f"{record['stages_us'][name]:.0f}" for name in STAGES]
    return [name_of(record), *(f"{us:.0f}" for us in times), f"**{times[1] / times[0]:.2f}**", *stages, *energy]


def markdown(records: list[dict[str, Any]]) -> str:
    """A row for each point that ran."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(row(one) for one in records if "error" not in one)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def torch_markdown(records: list[dict[str, Any]]) -> str:
    """A row for each point that the layer in torch alone was timed at: calls in a row."""
    lines: list[tuple[str, ...]] = [("Point", "fused", "unfused", "torch", "torch / fused"), ("---",) * 5]
    for record in records:
        if "torch" in record:
            times = [record["us"]["fused"]["median"], record["us"]["unfused"]["median"], record["torch"]["us"]["median"]]
            lines.append((name_of(record), *(f"{us:.0f}" for us in times), f"**{times[2] / times[0]:.1f}**"))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def picture(records: list[dict[str, Any]]) -> str:
    """Two bars for each point that ran, on an axis of its own: the fused kernel's, and the unfused layer's, of letters of its stages."""
    lines = []
    for record in records:
        if "error" in record:
            continue
        stages = record["stages_us"]
        scale = WIDTH * graph_us(record, "unfused") / graph_us(record, "fused") / sum(stages.values())
        bar, end = "", 0.0
        for name in STAGES:
            end += stages[name] * scale
            bar += LETTERS[name] * (round(end) - len(bar))
        lines += [f"{name_of(record):<12} {'=' * WIDTH}", f"{'':<12} {bar}"]
    return "\n".join(lines)
