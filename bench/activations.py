"""Activations, biases and top-k weights in combine beside silu without any of them, in turns in the same process.

    python bench/activations.py prepare FOLDER      where the DSL is
    python bench/activations.py run FOLDER      where GPUs are

By default Flash's share of eight ranks on one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from in_turns import InTurns
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import SEED, Point
from megamoe_dsl.bench.timing import launches_of, synchronize, time_back_to_back, time_graphs
from megamoe_dsl.cases import random_weights
from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.kernels.moe.family import PreDispatchKernel
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.target import Target

PLAIN = "silu"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {},
    "swigluoai": {"activation": "swigluoai"},
    "situ": {"activation": "situ"},
    "silu, biases": {"biases": True},
    "swigluoai, biases": {"activation": "swigluoai", "biases": True},
    "silu, weights in combine": {"weigh_results": True},
}
"""Fields of a problem, by what a record calls them."""


def problems_of(point: Point) -> dict[str, Problem]:
    """Of every variant; no activation is clamped but where it has a clamp of its own."""
    return {name: replace(point.problem, activation_clamp=None, **fields) for name, fields in VARIANTS.items()}


def activation_configs(point: Point, target: Target) -> list[KernelConfig]:
    """Every kernel that `activation_point` runs."""
    family, problems = find_kernel("mega_moe"), problems_of(point).values()
    fused = [family.choose(problem, target, point.tokens) for problem in problems]
    return [*fused, *(PreDispatchKernel().choose(problem, target, 0, quantized=True) for problem in problems)]


def activation_point(point: Point, rank: int, store: ArtifactStore) -> dict[str, Any]:
    """Times of every variant on the same tokens and, biases apart, weights."""
    layers = {
        name: MegaMoE(problem, random_weights(problem, rank, SEED, "cuda"), store=store, bf16_inputs=False)
        for name, problem in problems_of(point).items()
    }
    x, x_sf, idx, topk_weights = point.draw(SEED)
    y = torch.empty(point.tokens, point.problem.hidden, dtype=torch.bfloat16, device="cuda")

    def launch_of(layer: MegaMoE) -> Callable[[], None]:
        def launch() -> None:
            layer(x, idx, topk_weights, x_sf=x_sf, out=y)

        return launch

    runs = {name: launch_of(layer) for name, layer in layers.items()}
    for run in runs.values():
        run()
    synchronize()
    graphs, times = time_graphs(runs), time_back_to_back(runs, launches_of(point.tokens))
    for layer in layers.values():
        layer.synchronize()
    runs.clear()
    for layer in layers.values():
        layer.symmetric.close()
    return {
        "point": asdict(point),
        "us": {name: asdict(one) for name, one in times.items()},
        "graph_us": {name: asdict(one) for name, one in graphs.items()},
    }


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    graph = record["graph_us"]
    plain = graph[PLAIN]["median"]
    times = ", ".join(f"{name} {one['median']:.1f} ({one['median'] / plain - 1:+.1%})" for name, one in graph.items())
    return f"{record['name']}: us in graphs: {times}"


if __name__ == "__main__":
    script = InTurns("activations", activation_configs, activation_point, line_of)
    script.main(__doc__, preset="flash", experts_per_rank=32, tokens="8,512,2048", ranks="1")
