"""A point: kernels that a folder has for it and the baselines, checked and timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from ...artifact.store import ArtifactStore
from ...blocks.gemm.config import GemmConfig
from ...blocks.gemm.problem import GEMM_RECIPES
from ...runtime.device_gemm import LoadedGemm
from ...runtime.gemm_tensors import GemmTensors
from ..timing import GRAPH_LAUNCHES, REPEATS, time_back_to_back, time_graphs
from .baselines import Launches, deep_gemm, torch_scaled, torch_unscaled
from .inputs import TOLERANCE, PointInputs
from .point import GemmPoint

TURN_US = 8_000.0  # of back-to-back launches of a repeat
MOST_LAUNCHES = 50
BEYOND_L2 = 150_000_000  # bytes: three times that of an H200
BASELINE = "deep_gemm"


def variant(config: GemmConfig) -> str:
    """Tile and choices of a configuration, short."""
    text = (
        f"{config.block_m}x{config.block_n} w{config.warpgroups} c{config.cluster} s{config.num_stages} g{config.group_m} a{config.ahead}"
    )
    text += f" b{config.burst}" if config.burst > 1 else ""
    return text + "".join(f" {name}" for name in ("swap_ab", "halves", "dealt", "in_turn", "split_k") if getattr(config, name))


def loaded(configs: Sequence[GemmConfig], store: ArtifactStore, tensors: GemmTensors) -> Launches:
    """Launches of kernels on the same tensors, by the name of their variant."""
    return {variant(one): partial(LoadedGemm(one, store, tensors.a.device), tensors) for one in configs}


def checked(launches: Launches, inputs: PointInputs) -> dict[str, float]:
    """The error of each kernel's D."""
    errors: dict[str, float] = {}
    for name, launch in launches.items():
        inputs.tensors.d.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        errors[name] = inputs.error(inputs.tensors.d)
    return errors


def run_point(
    point: GemmPoint,
    configs: Sequence[GemmConfig],
    store: ArtifactStore,
    site: Path | None,
    repeats: int = REPEATS,
    beside: Beside | None = None,
) -> dict[str, Any]:
    """A record: every kernel's check and times, the fastest first, and what the baselines refuse.

    beside  what else runs at a point whose B is decoded; weights then come from memory, not from L2, as each launch has other copies"""
    inputs = PointInputs.draw(point)
    launches = loaded(configs, store, inputs.tensors)
    errors = checked(launches, inputs)
    if beside is None:
        theirs, refused = baselines_of(point, inputs, site, errors)
    else:
        theirs, refused = beside.launches(store, site, errors), {}
        count = copies_of(inputs.tensors)
        launches = in_rotation([loaded(configs, store, one.tensors) for one in inputs.copies(count)])
    chosen = {variant(one): {key: value for key, value in asdict(one).items() if key != "problem"} for one in configs}
    launches |= theirs
    entries: list[dict[str, Any]] = []
    graphs = time_graphs(launches)
    slowest = max(times.median for times in graphs.values())
    times = time_back_to_back(launches, max(3, min(MOST_LAUNCHES, int(TURN_US / slowest))), repeats)
    for name in launches:
        figures = {"us": asdict(times[name]), "graph_us": asdict(graphs[name]), "tflops": point.flop / times[name].median / 1e6}
        check = {"error": errors[name], "passed": errors[name] <= TOLERANCE} if name in errors else None
        entries.append({"kernel": name, "config": chosen.get(name), "check": check, **figures})
    del inputs, launches, theirs
    torch.cuda.empty_cache()
    kernels = sorted(entries, key=lambda one: one["us"]["median"])
    return {**point.describe(), "bytes": point.num_bytes, "kernels": kernels, "refused": refused}


def baselines_of(point: GemmPoint, inputs: PointInputs, site: Path | None, errors: dict[str, float]) -> tuple[Launches, dict[str, str]]:
    """Other projects' kernels on the same tensors, whose errors are added, and what they refuse."""
    other = torch.full_like(inputs.tensors.d, float("nan"))
    found = deep_gemm(point, replace(inputs), other, site)
    for name, run in found.items():
        run()
        torch.cuda.synchronize()
        if name == BASELINE:
            errors[name] = inputs.error(other)
    theirs, refused = (torch_scaled if point.problem.formats.scaled else torch_unscaled)(point, inputs)
    return found | theirs, refused


@dataclass(frozen=True)
class Beside:
    """The same point with E4M3 weights: this project's kernels for it, and the baseline."""

    point: GemmPoint
    configs: Sequence[GemmConfig]

    def launches(self, store: ArtifactStore, site: Path | None, errors: dict[str, float]) -> Launches:
        """On numbers of their own, whose errors are added."""
        inputs, recipe = PointInputs.draw(self.point), self.point.problem.recipe
        named = loaded(self.configs, store, inputs.tensors)
        errors |= {f"{recipe} {name}": error for name, error in checked(named, inputs).items()}
        found = []
        for one in inputs.copies(copies_of(inputs.tensors)):
            theirs = deep_gemm(self.point, one, torch.empty_like(one.tensors.d), site)
            ours = {f"{recipe} {name}": launch for name, launch in loaded(self.configs, store, one.tensors).items()}
            found.append({**ours, **theirs})
        return in_rotation(found)


def copies_of(tensors: GemmTensors) -> int:
    """So many of B that L2 does not hold them; no more than a graph has launches."""
    return min(GRAPH_LAUNCHES, -(-BEYOND_L2 // (tensors.b.numel() * tensors.b.element_size())))


def in_rotation(found: Sequence[Launches]) -> Launches:
    """Of every name, its launches one after the other."""

    def next_of(turns: Iterator[Callable[[], Any]]) -> Callable[[], Any]:
        return lambda: next(turns)()

    return {name: next_of(cycle([one[name] for one in found])) for name in found[0]}


def table(record: dict[str, Any]) -> str:
    """A record as text; ratios are those of the baseline's time to a kernel's, or of that with E4M3 weights."""
    if "error" in record:
        return f"{record['name']}: FAILED: {record['error']}"
    usual = [one for one in record["kernels"] if one["kernel"].startswith(GEMM_RECIPES[0])]
    baseline = usual or [one for one in record["kernels"] if one["kernel"].startswith(BASELINE)]
    theirs = sorted(one["us"]["median"] for one in baseline)
    graph = sorted(one["graph_us"]["median"] for one in baseline)
    lines = [f"{record['name']}: {record['bytes'] / 1e6:.0f} MB"]
    for one in record["kernels"]:
        ratio = f"{theirs[0] / one['us']['median']:.3f} {graph[0] / one['graph_us']['median']:.3f}" if theirs else ""
        check = "" if one["check"] is None else f"{'ok' if one['check']['passed'] else 'WRONG'} {one['check']['error']:.2e}"
        us, replay = one["us"]["median"], one["graph_us"]["median"]
        lines.append(f"  {us:9.1f} {replay:9.1f} us {one['tflops']:6.0f} TFLOPS  {ratio:12} {check:15} {one['kernel']}")
    return "\n".join([*lines, *(f"  {name} refuses: {text}" for name, text in record["refused"].items())])
