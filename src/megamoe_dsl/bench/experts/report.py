"""A run's records as a table for the documentation: the layer as it is chosen by default."""

from __future__ import annotations

from typing import Any

from ..gemm.report import number

OURS = ("ours", "TFLOPS", "TB/s", "of the ceiling", "experts", "route", "Linear1", "Linear2", "sum")
OTHERS = ("torch, BF16", "torch / ours", "SGLang's Triton", "Triton / ours", "copy, DeepGEMM Linear1", "theirs / our Linear1")
EQUAL = (
    "SGLang's Triton, sorting too",
    "sorting Triton / ours",
    "copy, DeepGEMM Linear1, activated",
    "activated / our Linear1",
    "DeepGEMM's layer",
    "DeepGEMM / ours",
)
"""Others' doing all that ours does."""
QUACK = ("quack's GEMMs", "quack / ours", "quack's Linear1", "its / our Linear1", "quack's Linear2", "its / our Linear2")
HEADINGS = ("Tokens", *OURS, *OTHERS, *EQUAL, *QUACK)


def beside(theirs: float | None, ours: float) -> list[str]:
    """Cells of another's time and of how many times ours it is."""
    return ["", ""] if theirs is None else [number(theirs), f"**{theirs / ours:.2f}**"]


def fastest(us: dict[str, float], prefix: str) -> float | None:
    """Of the tiles of another's kernel, or of its ways."""
    return min((time for name, time in us.items() if name.startswith(prefix)), default=None)


def row(record: dict[str, Any]) -> list[str]:
    """Cells of a point: microseconds in CUDA graphs; of the bytes that have to move, and of the time that the GPU's ceilings allow."""
    us = {name: float(one["median"]) for name, one in record["us"].items()}
    ours = us["ours, chosen"]
    launches = [number(us[name]) for name in ("top_experts", "route", "fc1, chosen", "fc2", "sum")]
    moved = [f"{record['hbm_bytes'] / ours / 1e6:.2f}", f"{record['least_us'] / ours:.2f}"] if "hbm_bytes" in record else ["", ""]
    rates = [f"{record['flop'] / ours / 1e6:.0f}", *moved]
    compared = (
        (us.get("torch bf16"), ours),
        (fastest(us, "sglang "), ours),
        (us.get("permute, deep_gemm fc1"), us["fc1, chosen"]),
        (fastest(us, "sorting, sglang "), ours),
        (fastest(us, "permute, deep_gemm fc1, "), us["fc1, chosen"]),
        (fastest(us, "deep_gemm layer, "), ours),
        (fastest(us, "quack layer "), ours),
        (fastest(us, "quack fc1 "), us["fc1, chosen"]),
        (fastest(us, "quack fc2 "), us["fc2"]),
    )
    others = [cell for theirs, own in compared for cell in beside(theirs, own)]
    return [str(record["tokens"]), number(ours), *rates, *launches, *others]


def markdown(records: list[dict[str, Any]]) -> str:
    """A row for each point that was right; columns of which no point has anything are left out."""
    rows = [row(one) for one in records if one["passed"]]
    kept = [index for index in range(len(HEADINGS)) if any(cells[index] for cells in rows)]
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
    return "\n".join(f"| {' | '.join(cells[index] for index in kept)} |" for cells in lines)
