"""One line of text per record."""

from __future__ import annotations

from typing import Any

POINT = 28  # flash El32 EP2 R0.875 M=8192
COLUMNS = (
    ("point", POINT),
    ("us", 8),
    ("graph", 8),
    ("baseline", 8),
    ("graph", 8),
    ("ratio", 6),
    ("graph", 6),
    ("TFLOPS", 7),
    ("ceiling", 8),
    ("of it", 6),
    ("slowest", 8),
    ("of it", 6),
    ("TB/s", 5),
    ("NVL GB/s", 8),
    ("MiB", 6),
    ("baseline", 6),
    ("check", 16),
    ("variant", 0),
)
HEADINGS = " ".join(name.ljust(width) if name in ("point", "check", "variant") else name.rjust(width) for name, width in COLUMNS)


def _number(value: float | None, width: int, digits: int = 1) -> str:
    return ("-" if value is None else f"{value:.{digits}f}").rjust(width)


def trace_lines(record: dict[str, Any]) -> list[str]:
    """A traced launch: microseconds per warp of every activity, their share of the launch, and when it began and ended."""
    launch = record["launch_us"]
    lines = [f"{record['name']}: {launch:.1f} us from the first stamp to the last", f"{'':28s} us/warp  share  spans   from     to"]
    for role, activities in record["trace"].items():
        for name, one in activities.items():
            share = one["us"] / launch if launch else 0.0
            figures = f"{one['us']:8.1f} {share:6.3f} {one['spans']:6.1f} {one['first']:6.1f} {one['last']:6.1f}"
            lines.append(f"{role:14s} {name:22s}{figures}")
    return lines


def row(record: dict[str, Any]) -> str:
    """A timed point, a soak or a failure as a line; further variants on lines of their own."""
    if "error" in record:
        return f"{record['name']:{POINT}s} FAILED: {record['error']}"
    if "trace" in record:
        return "\n".join(trace_lines(record))
    if "soak" in record:
        facts = ", ".join(f"{name} {value}" for name, value in record["soak"].items())
        return f"{record['name']:{POINT}s} {facts}"
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
        lines.append(
            " ".join(
                (
                    (record["name"] if name == best["variant"] else "").ljust(POINT),
                    _number(us, 8),
                    _number(graph, 8),
                    _number(baseline_us, 8),
                    _number(baseline_graph, 8),
                    _number(baseline_us / us if baseline_us else None, 6, 3),
                    _number(baseline_graph / graph if baseline_graph and graph else None, 6, 3),
                    _number(work["flop"] / us / 1e6, 7),
                    f"{work['bound_us']:.0f} {work['bound_by'][:4]}".rjust(8),
                    _number(work["bound_us"] / us, 6, 3),
                    f"{slowest['bound_us']:.0f} {slowest['bound_by'][:4]}".rjust(8),
                    _number(slowest["bound_us"] / us, 6, 3),
                    _number(work["hbm_bytes"] / us / 1e6, 5, 2),
                    _number(work["nvlink_bytes"] / us / 1e3, 8, 0),
                    _number(record["symmetric_bytes"] / 2**20, 6, 0),
                    _number(baseline["symmetric_bytes"] / 2**20 if baseline else None, 6, 0),
                    verdict.ljust(16),
                    name,
                )
            )
        )
    if "baseline_error" in record:
        lines.append(f"{'':20s} no baseline: {record['baseline_error']}")
    return "\n".join(lines)
