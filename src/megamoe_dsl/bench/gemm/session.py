"""A point: kernels that a folder has for it and the baselines, checked and timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...artifact.store import ArtifactStore
from ...kernels.gemm.config import GemmConfig
from ...runtime.device_gemm import LoadedGemm
from ...runtime.gemm_tensors import GemmTensors
from ..timing import REPEATS, time_back_to_back, time_graphs
from .baselines import deep_gemm, torch_scaled
from .inputs import TOLERANCE, PointInputs
from .point import GemmPoint

TURN_US = 8_000.0  # of back-to-back launches of a repeat
MOST_LAUNCHES = 50


def variant(config: GemmConfig) -> str:
    """Tile and choices of a configuration, short."""
    text = (
        f"{config.block_m}x{config.block_n} w{config.warpgroups} c{config.cluster} s{config.num_stages} g{config.group_m} a{config.ahead}"
    )
    return text + "".join(f" {name}" for name in ("swap_ab", "halves", "dealt", "in_turn", "split_k") if getattr(config, name))


def loaded(configs: Sequence[GemmConfig], store: ArtifactStore, tensors: GemmTensors) -> dict[str, Callable[[], Any]]:
    """Launches of kernels on the same tensors, by the name of their variant."""
    return {variant(one): partial(LoadedGemm(one, store, tensors.a.device), tensors) for one in configs}


def run_point(
    point: GemmPoint, configs: Sequence[GemmConfig], store: ArtifactStore, site: Path | None, repeats: int = REPEATS
) -> dict[str, Any]:
    """A record: every kernel's check and times, the fastest first, and what the baselines refuse."""
    inputs = PointInputs.draw(point)
    t = inputs.tensors
    launches = loaded(configs, store, t)
    errors: dict[str, float] = {}
    for name, launch in launches.items():
        t.d.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        errors[name] = inputs.error(t.d)
    chosen = {variant(one): {key: value for key, value in asdict(one).items() if key != "problem"} for one in configs}
    other = torch.full_like(t.d, float("nan"))
    baselines = deep_gemm(point, replace(inputs), other, site)
    for name, run in baselines.items():
        run()
        torch.cuda.synchronize()
        if name == "deep_gemm":
            errors[name] = inputs.error(other)
    theirs, refused = torch_scaled(point, inputs)
    launches |= baselines | theirs
    entries: list[dict[str, Any]] = []
    graphs = time_graphs(launches)
    slowest = max(times.median for times in graphs.values())
    count = max(3, min(MOST_LAUNCHES, int(TURN_US / slowest)))
    times = time_back_to_back(launches, count, repeats)
    for name in launches:
        figures = {"us": asdict(times[name]), "graph_us": asdict(graphs[name]), "tflops": point.flop / times[name].median / 1e6}
        check = {"error": errors[name], "passed": errors[name] <= TOLERANCE} if name in errors else None
        entries.append({"kernel": name, "config": chosen.get(name), "check": check, **figures})
    del inputs, launches, other
    torch.cuda.empty_cache()
    kernels = sorted(entries, key=lambda one: one["us"]["median"])
    return {**point.describe(), "bytes": point.num_bytes, "kernels": kernels, "refused": refused}


def table(record: dict[str, Any]) -> str:
    """A record as text; ratios are those of the baseline's time to a kernel's."""
    if "error" in record:
        return f"{record['name']}: FAILED: {record['error']}"
    baseline = [one for one in record["kernels"] if one["kernel"].startswith("deep_gemm")]
    theirs = sorted(one["us"]["median"] for one in baseline)
    graph = sorted(one["graph_us"]["median"] for one in baseline)
    lines = [f"{record['name']}: {record['bytes'] / 1e6:.0f} MB"]
    for one in record["kernels"]:
        ratio = f"{theirs[0] / one['us']['median']:.3f} {graph[0] / one['graph_us']['median']:.3f}" if theirs else ""
        check = "" if one["check"] is None else f"{'ok' if one['check']['passed'] else 'WRONG'} {one['check']['error']:.2e}"
        us, replay = one["us"]["median"], one["graph_us"]["median"]
        lines.append(f"  {us:9.1f} {replay:9.1f} us {one['tflops']:6.0f} TFLOPS  {ratio:12} {check:15} {one['kernel']}")
    return "\n".join([*lines, *(f"  {name} refuses: {text}" for name, text in record["refused"].items())])
