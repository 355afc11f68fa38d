"""Records as text."""

from __future__ import annotations

from typing import Any

POINT = 28  # flash El32 EP2 R0.875 M=8192
COLUMNS = (
    *(("us", 8, 1), ("graph", 8, 1), ("baseline", 8, 1), ("graph", 8, 1), ("ratio", 6, 3), ("graph", 6, 3), ("TFLOPS", 7, 1)),
    *(("ceiling", 8, 0), ("of it", 6, 3), ("slowest", 8, 0), ("of it", 6, 3), ("TB/s", 5, 2), ("NVL GB/s", 8, 0)),
    *(("MiB", 6, 0), ("baseline", 6, 0)),
)
"""Headings of figures, widths, digits."""
HEADINGS = " ".join(["point".ljust(POINT), *(name.rjust(width) for name, width, _ in COLUMNS), f"{'check':16s} variant"])


def cell(value: float | str | None, width: int, digits: int) -> str:
    """A figure, a text, or a dash."""
    return (f"{value:.{digits}f}" if isinstance(value, float | int) else value or "-").rjust(width)


def trace_row(record: dict[str, Any]) -> str:
    """A traced launch: microseconds per warp of every activity, their share of the launch, and when it began and ended."""
    launch = record["launch_us"]
    lines = [f"{record['name']}: {launch:.1f} us from the first stamp to the last", f"{'':28s} us/warp  share  spans   from     to"]
    for role, activities in record["trace"].items():
        for name, one in activities.items():
            share = one["us"] / launch if launch else 0.0
            figures = f"{one['us']:8.1f} {share:6.3f} {one['spans']:6.1f} {one['first']:6.1f} {one['last']:6.1f}"
            lines.append(f"{role:14s} {name:22s}{figures}")
    return "\n".join(lines)


def timed_row(record: dict[str, Any]) -> str:
    """A timed point as a line; further variants on lines of their own."""
    best, work, slowest, baseline = record["best"], record["work"], record["slowest_rank"], record.get("baseline")
    lines = []
    for name in sorted(record["variants"], key=lambda one: record["variants"][one]["us"]["median"]):
        entry = record["variants"][name]
        us, graph = entry["us"]["median"], entry["graph_us"]["median"] if entry["graph_us"] else None
        baseline_us = baseline["us"]["median"] if baseline else None
        baseline_graph = baseline["graph_us"]["median"] if baseline and baseline["graph_us"] else None
        check = entry["check"]
        verdict = (
            "not checked" if check is None else f"{'ok' if check['passed'] else 'WRONG'} {check['worst']:.2f} {check['same_bits']:.4f}"
        )
        figures = (
            *(us, graph, baseline_us, baseline_graph),
            *(baseline_us / us if baseline_us else None, baseline_graph / graph if baseline_graph and graph else None),
            *(work["flop"] / us / 1e6, f"{work['bound_us']:.0f} {work['bound_by'][:4]}", work["bound_us"] / us),
            *(f"{slowest['bound_us']:.0f} {slowest['bound_by'][:4]}", slowest["bound_us"] / us),
            *(work["hbm_bytes"] / us / 1e6, work["nvlink_bytes"] / us / 1e3),
            *(record["symmetric_bytes"] / 2**20, baseline["symmetric_bytes"] / 2**20 if baseline else None),
        )
        cells = [cell(value, width, digits) for value, (_, width, digits) in zip(figures, COLUMNS, strict=True)]
        lines.append(" ".join([(record["name"] if name == best["variant"] else "").ljust(POINT), *cells, verdict.ljust(16), name]))
    return "\n".join(lines)
