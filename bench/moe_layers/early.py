"""Launches of a layer that begin early, beside those that do not: the same bits, call after call and in graphs, and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megamoe_dsl import choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.timing import graph_of, time_graphs
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.kernels.expert_layer import LayerConfigs
from megamoe_dsl.kernels.expert_routing.config import TokensConfig
from megamoe_dsl.kernels.expert_routing.problem import TopExpertsProblem
from megamoe_dsl.runtime.cuda_kernel import CudaKernel
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.preparation import compile_ahead
from megamoe_dsl.target import Target
from moe_layers.inputs import DrawnCall, run_each
from moe_layers.point import ExpertPoint
from moe_layers.steps import SteppedExperts

GEMMS, ALL, WEIGHTS = "the GEMMs", "all", "all, and weights first"
"""What begins early: the GEMMs alone, all launches, and Linear2 with its weights before Linear1 has ended."""
REPLAYS, CALLS = 1000, 2


@dataclass(frozen=True)
class Routed:
    """A call from logits on: five launches."""

    top: CudaKernel
    experts: SteppedExperts

    def __call__(self, logits: torch.Tensor, call: ExpertCall) -> None:
        """All of them."""
        self.choose(logits, call)
        self.experts(call)

    def choose(self, logits: torch.Tensor, call: ExpertCall) -> None:
        """The first: experts and their weights to where the call has them."""
        values, addresses = self.top.arguments.values, {"logits": logits, "topk_idx": call.topk_idx, "topk_weights": call.topk_weights}
        for name, tensor in addresses.items():
            setattr(values, name, tensor.data_ptr())
        values.bias, values.num_tokens = 0, call.tokens
        self.top.launch()

    def one_by_one(self, logits: torch.Tensor, call: ExpertCall) -> torch.Tensor:
        """The result of launches none of which begins before the one before it has ended."""
        steps = self.experts.route, self.experts.fc1, self.experts.fc2, self.experts.sum
        for step in (partial(self.choose, logits), *steps):
            step(call)
            torch.cuda.synchronize()
        return call.y.clone()


def configs_of(point: ExpertPoint, target: Target) -> dict[str, tuple[TokensConfig, LayerConfigs]]:
    """By what begins early."""
    chooses = choose(TopExpertsProblem(point.layer.num_experts, point.layer.topk), target, 0)
    configs = point.layer.configs(target, point.tokens)
    assert isinstance(configs.fc2, GemmConfig)
    later = configs._replace(fc2=replace(configs.fc2, prefetch_weights=False))
    return {GEMMS: (chooses, later), ALL: (chooses, later), WEIGHTS: (chooses, configs)}


def compile_early(points: Sequence[ExpertPoint], target: Target, folder: Path) -> int:
    """Compiles what the folder lacks; how many kernels."""
    wanted: set[Any] = {one for point in points for chooses, layer in configs_of(point, target).values() for one in (chooses, *layer)}
    return compile_ahead(wanted, ArtifactStore(folder))


def run_early(points: Sequence[ExpertPoint], target: Target, folder: Path, replays: int = REPLAYS) -> Iterator[dict[str, Any]]:
    """A record of each point; models one after another."""
    return run_each(points, lambda point, weights: run_point(point, target, ArtifactStore(folder), weights, replays))


def run_point(point: ExpertPoint, target: Target, store: ArtifactStore, weights: LayerOperands, replays: int) -> dict[str, Any]:
    """Wrong results among replays of a graph of calls with other tokens and experts, which share a workspace; then times."""
    given = DrawnCall.draw(point.layer, point.tokens, weights).call
    device = given.x.device
    ways = {
        name: Routed(CudaKernel(store.get(chooses), name != GEMMS), SteppedExperts(layer, store, device, name != GEMMS))
        for name, (chooses, layer) in configs_of(point, target).items()
    }
    generator = torch.Generator(device).manual_seed(point.tokens)
    routed = replace(given, topk_idx=torch.empty_like(given.topk_idx), topk_weights=torch.empty_like(given.topk_weights))
    calls = [
        replace(routed, x=torch.randn(given.x.shape, device=device, generator=generator).bfloat16(), memory=given.workspace)
        for _ in range(CALLS)
    ]
    logits = [torch.randn(point.tokens, point.layer.num_experts, device=device, generator=generator) for _ in calls]
    expected = [ways[GEMMS].one_by_one(*one) for one in zip(logits, calls, strict=True)]
    wrong = {name: wrong_results(way, logits, calls, expected, replays) for name, way in ways.items()}
    timed: dict[str, Callable[[], Any]] = {name: partial(way.experts, given) for name, way in ways.items()}
    timed |= {f"{name}; logits": partial(way, logits[0], calls[0]) for name, way in ways.items()}
    return {
        "point": str(point),
        "us": {name: asdict(times) for name, times in time_graphs(timed).items()},
        "replays": replays,
        "wrong": wrong,
        "passed": not any(wrong.values()),
    }


def wrong_results(way: Routed, logits: list[torch.Tensor], calls: list[ExpertCall], expected: list[torch.Tensor], replays: int) -> int:
    """Of replays of a graph of these calls, one after another: how many results have other bits."""

    def all_calls() -> None:
        for one in zip(logits, calls, strict=True):
            way(*one)

    all_calls()
    graph, wrong = graph_of(all_calls), torch.zeros((), dtype=torch.int64, device=calls[0].x.device)
    for _ in range(replays):
        graph.replay()
        for call, y in zip(calls, expected, strict=True):
            wrong += (call.y.view(torch.int16) != y.view(torch.int16)).any()
            call.y.zero_()
    return int(wrong)
