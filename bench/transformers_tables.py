"""Tables of docs/lab/transformers.md, from records of bench/transformers_models.py."""

from __future__ import annotations

from typing import Any

from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.moe.roofline import CEILINGS, measured_gpu
from transformers_shapes import MODELS

OURS, NOTHING, LEAST = "megamoe", "nothing", "least"
OTHERS = ("grouped_mm", "batched_mm", "sonicmoe", "deepgemm")
KINDS = {
    "experts": r"kernel_cutlass_",
    "attention": r"attention|flash|fmha|softmax|cudnn",
    "GEMMs": r"gemm|gemv|nvjet|cublas|splitK",
    "others": r"",
}
"""What a GPU does in a model with our experts, by names of kernels: the first that matches."""
IDLE = "GPU idle"


def size_of(record: dict[str, Any]) -> int:
    """Tokens of a prompt, or sequences of a batch."""
    return int(record.get("tokens", record.get("batch")))


def idle_ms(record: dict[str, Any]) -> float:
    """Milliseconds of a run of ours in which the GPU waits for the host: those that no kernel takes."""
    return max(0.0, record["ms"][OURS]["median"] - sum(record["gpu_ms"].values()))


def tables(*runs: dict[str, Any]) -> str:
    """Markdown of files of records: a table for each GPU, model and kind of record, and one of memory."""
    lines: list[str] = []
    every = [{**one, "gpu": run["gpu"]} for run in runs for one in run["records"]]
    timed = [one for one in every if one.get("ms")]
    for gpu, model, what in dict.fromkeys((one["gpu"], one["model"], one["what"]) for one in timed):
        of = [one for one in timed if (one["gpu"], one["model"], one["what"]) == (gpu, model, what)]
        rows = {size_of(one): {name: each["median"] for name, each in one["ms"].items()} for one in of}
        bound = LEAST if what.endswith("graph") else NOTHING  # elsewhere the host may hold a GPU up, which then reads weights meanwhile
        for size, row in rows.items() if bound == LEAST else ():
            row[LEAST] = row[NOTHING] + of[0]["layers"] * least_ms(MODELS[model].layer, gpu, size)
        title, size = f"{model}, {what}", "tokens" if what == "first token" else "batch"
        lines += table(f"{title}, ms on one {gpu}", size, rows, {"best other / ours": OURS, f"best other / {bound}": bound})
        if profiles := {size_of(one): {**one["gpu_ms"], IDLE: idle_ms(one)} for one in of if "gpu_ms" in one}:
            lines += table(f"{title}, ms of the GPU in a run of megamoe", size, profiles, {})
        if peaks := {one["tokens"]: one["peak_gib"] for one in of if one.get("peak_gib")}:
            lines += table(f"{title}, peak memory in GiB", size, peaks, {})
    return "\n".join(lines[1:])


def least_ms(layer: ExpertLayer, gpu: str, tokens: int) -> float:
    """Milliseconds in which a GPU reads the BF16 weights of the experts that so many tokens choose, in the mean of even draws, or
    multiplies by them, as fast as it has been measured to."""
    limits, weights = CEILINGS[measured_gpu(gpu)], 3 * layer.hidden * layer.intermediate
    experts = layer.num_experts * (1 - (1 - layer.topk / layer.num_experts) ** tokens)
    return 1e3 * max(2 * weights * experts / limits.hbm_bytes, 2 * weights * tokens * layer.topk / (limits.fp8_flops / 2))


def table(title: str, size: str, rows: dict[int, dict[str, float]], ratios: dict[str, str]) -> list[str]:
    """Lines of a table of numbers by implementation; a ratio divides those of the best other one by another column."""
    names = [name for name in (OURS, *OTHERS, NOTHING, LEAST, *KINDS, IDLE) if any(name in row for row in rows.values())]
    lines = ["", f"{title}:", "", f"| {size} | " + " | ".join([*names, *ratios]) + " |", "| --- " * (1 + len(names) + len(ratios)) + "|"]
    for place, row in rows.items():
        best = min((value for name, value in row.items() if name in OTHERS), default=0.0)
        cells = [f"{row[name]:.2f}" if name in row else "" for name in names]
        cells += [f"**{best / row[name]:.2f}**" for name in ratios.values()]
        lines.append(f"| {place} | " + " | ".join(cells) + " |")
    return lines
