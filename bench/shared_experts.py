"""A shared expert in the fused launch, beside a dense layer added outside, in turns in the same process.

    python bench/shared_experts.py prepare FOLDER --preset deepseek-v3 --experts-per-rank 32 --ranks 2      where the DSL is
    python bench/shared_experts.py run FOLDER --preset deepseek-v3 --experts-per-rank 32 --ranks 2 --remote 0.875      where GPUs are

The dense layer is this project's own: a layer of one rank with one expert, which a torch addition follows.
"""

from __future__ import annotations

from collections.abc import Callable
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
from megamoe_dsl.shared_experts import SharedExperts
from megamoe_dsl.target import Target

COUNT = 1
"""Shared experts of a rank, as DeepSeek, Kimi and GLM have."""


def dense_problem(routed: Problem) -> Problem:
    """The shared expert as a layer of one rank and one expert."""
    return replace(routed, num_experts=COUNT, topk=COUNT, num_ranks=1)


def shared_configs(point: Point, target: Target) -> list[KernelConfig]:
    """Every kernel that `shared_point` runs."""
    family, shared = find_kernel("mega_moe"), SharedExperts(point.problem, COUNT)
    problems = [(shared.whole, COUNT), (shared.routed, 0), (dense_problem(shared.routed), 0)]
    fused = [family.choose(problem, target, point.tokens) for problem, _ in problems]
    return [*fused, *(PreDispatchKernel().choose(problem, target, 0, quantized=True, shared=count) for problem, count in problems)]


def shared_point(point: Point, rank: int, store: ArtifactStore) -> dict[str, Any]:
    """Times of one layer with the shared expert, and of a layer without one whose y a dense layer's is added to; all ranks together."""
    shared = SharedExperts(point.problem, COUNT)
    routed, dense = shared.routed, dense_problem(shared.routed)
    weights, local = random_weights(shared.whole, rank, SEED, "cuda"), routed.experts_per_rank
    inside = MegaMoE(routed, weights, store=store, bf16_inputs=False, shared_experts=COUNT)
    others = MegaMoE(routed, weights.map(lambda tensor: tensor[:local]), store=store, bf16_inputs=False)
    alone = MegaMoE(dense, weights.map(lambda tensor: tensor[local:]), store=store, bf16_inputs=False)
    x, x_sf, idx, topk_weights = point.draw(SEED)
    first, ones = torch.zeros(point.tokens, COUNT, dtype=torch.int64, device="cuda"), torch.ones(point.tokens, COUNT, device="cuda")
    y, together, added = (torch.empty(point.tokens, routed.hidden, dtype=torch.bfloat16, device="cuda") for _ in range(3))

    def in_the_launch() -> None:
        inside(x, idx, topk_weights, x_sf=x_sf, out=together)

    def outside() -> None:
        others(x, idx, topk_weights, x_sf=x_sf, out=y)
        alone(x, first, ones, x_sf=x_sf, out=added)
        added.add_(y)

    def without() -> None:
        others(x, idx, topk_weights, x_sf=x_sf, out=y)

    runs: dict[str, Callable[[], None]] = {"in the launch": in_the_launch, "outside": outside, "without": without}
    for run in runs.values():
        run()
    synchronize()
    difference = float((together.float() - added.float()).norm() / added.float().norm())
    graphs, times = time_graphs(runs), time_back_to_back(runs, launches_of(point.tokens))
    for layer in (inside, others, alone):
        layer.synchronize()
    runs.clear()
    inside.symmetric.close()
    others.symmetric.close()
    return {
        "point": asdict(point),
        "difference": difference,
        "us": {name: asdict(one) for name, one in times.items()},
        "graph_us": {name: asdict(one) for name, one in graphs.items()},
    }


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    us, graph = record["us"], record["graph_us"]
    times = ", ".join(f"{name} {us[name]['median']:.1f} us ({graph[name]['median']:.1f} in graphs)" for name in us)
    gain = us["outside"]["median"] / us["in the launch"]["median"]
    return f"{record['name']}: {times}; outside / in the launch {gain:.3f}; y {record['difference']:.1e} apart"


if __name__ == "__main__":
    script = InTurns("shared_experts", shared_configs, shared_point, line_of)
    script.main(__doc__, preset="deepseek-v3", tokens="8,64,512,2048", ranks="2")
