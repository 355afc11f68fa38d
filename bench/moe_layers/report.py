"""A run's records as tables for the documentation: the layer as it is chosen by default."""

from __future__ import annotations

from typing import Any

from gemms.report import number

OURS = ("Tokens", "ours", "TFLOPS", "TB/s", "of the ceiling", "J", "W", "experts", "route", "Linear1", "Linear2", "sum")
SGLANG = ("SGLang's Triton", "Triton / ours", "SGLang's Triton, sorting too", "sorting Triton / ours")
DEEP_GEMM = ("DeepGEMM's layer", "DeepGEMM / ours")
DEEP_GEMM_FC1 = ("copy, DeepGEMM Linear1", "theirs / our Linear1", "copy, DeepGEMM Linear1, activated", "activated / our Linear1")
QUACK = ("quack's GEMMs", "quack / ours", "quack's Linear1", "its / our Linear1", "quack's Linear2", "its / our Linear2")
FLASHINFER = ("FlashInfer", "FlashInfer / ours", "FlashInfer, rows kept", "rows kept / ours")
ROUTED = ("router, ours", "torch's router, choice and layer", "torch routed / ours routed")
FUSED = ("fused", "unfused, DeepGEMM's GEMMs", "unfused / fused")
TABLES = (
    (*OURS, "torch, BF16", "torch / ours"),
    ("Tokens", "ours", *SGLANG, *DEEP_GEMM, "Linear1", *DEEP_GEMM_FC1),
    ("Tokens", "ours", "Linear1", "Linear2", *QUACK),
    ("Tokens", "ours", *FLASHINFER),
    ("Tokens", "ours", *ROUTED),
    ("Tokens", "ours", *FUSED),
)
"""Columns of each; the first is ours, the others set libraries beside it."""


def beside(theirs: float | None, ours: float) -> list[str]:
    """Cells of another's time and of how many times ours it is."""
    return ["", ""] if theirs is None else [number(theirs), f"**{theirs / ours:.2f}**"]


def fastest(us: dict[str, float], prefix: str) -> float | None:
    """Of the tiles of another's kernel, or of its ways."""
    return min((time for name, time in us.items() if name.startswith(prefix)), default=None)


TORCH_ROUTED = ("router", "torch topk, softmax", "torch bf16")
"""Launches of torch from tokens on."""


def total(us: dict[str, float], names: tuple[str, ...]) -> float | None:
    """Of launches one after the other, if all were timed."""
    return sum(us[name] for name in names) if all(name in us for name in names) else None


def cells(record: dict[str, Any]) -> dict[str, str]:
    """Of a point, by column: microseconds in CUDA graphs; of the bytes that have to move, and of the time that the GPU's ceilings allow."""
    us = {name: float(one["median"]) for name, one in record["us"].items()}
    ours, fc1 = us["ours, chosen"], us["fc1, chosen"]
    launches = [number(us[name]) for name in ("top_experts", "route", "fc1, chosen", "fc2", "sum")]
    moved = [f"{record['hbm_bytes'] / ours / 1e6:.2f}", f"{record['least_us'] / ours:.2f}"] if "hbm_bytes" in record else ["", ""]
    joules = record.get("joules", {}).get("ours, chosen", {}).get("median")
    energy = ["", ""] if joules is None else [f"{joules:.2f}", f"{joules / ours * 1e6:.0f}"]
    rates = [f"{record['flop'] / ours / 1e6:.0f}", *moved, *energy]
    fused = us.get("fused")
    found = {name: number(us[name]) if name in us else "" for name in ("router, ours", "fused")}
    found |= dict(zip(OURS, [str(record["tokens"]), number(ours), *rates, *launches], strict=True))
    compared = {
        "torch, BF16": ("torch / ours", us.get("torch bf16"), ours),
        "SGLang's Triton": ("Triton / ours", fastest(us, "sglang "), ours),
        "SGLang's Triton, sorting too": ("sorting Triton / ours", fastest(us, "sorting, sglang "), ours),
        "DeepGEMM's layer": ("DeepGEMM / ours", fastest(us, "deep_gemm layer, "), ours),
        "copy, DeepGEMM Linear1": ("theirs / our Linear1", us.get("permute, deep_gemm fc1"), fc1),
        "copy, DeepGEMM Linear1, activated": ("activated / our Linear1", fastest(us, "permute, deep_gemm fc1, "), fc1),
        "quack's GEMMs": ("quack / ours", fastest(us, "quack layer "), ours),
        "quack's Linear1": ("its / our Linear1", fastest(us, "quack fc1 "), fc1),
        "FlashInfer": ("FlashInfer / ours", fastest(us, "flashinfer "), ours),
        "FlashInfer, rows kept": ("rows kept / ours", fastest(us, "rows kept, flashinfer "), ours),
        "torch's router, choice and layer": ("torch routed / ours routed", total(us, TORCH_ROUTED), us.get("router, ours", 0.0)),
        "unfused, DeepGEMM's GEMMs": ("unfused / fused", fused and fastest(us, "deep_gemm layer, "), fused or 0.0),
        "quack's Linear2": ("its / our Linear2", fastest(us, "quack fc2 "), us["fc2"]),
    }
    for name, (ratio, theirs, own) in compared.items():
        found |= zip((name, ratio), beside(theirs, own), strict=True)
    return found


def table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> str:
    """Columns of which no point has anything are left out."""
    kept = [name for name in columns if any(row[name] for row in rows)]
    lines = [kept, ["---"] * len(kept), *([row[name] for name in kept] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(records: list[dict[str, Any]]) -> str:
    """A row for each point that was right; of tables those in which others have something, after the first."""
    rows = [cells(one) for one in records if one["passed"]]
    first, *others = TABLES
    shown = [columns for columns in others if any(row[name] for row in rows for name in columns if name not in OURS)]
    return "\n\n".join(table(rows, columns) for columns in (first, *shown))
