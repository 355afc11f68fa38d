"""A few tokens on one GPU: what `moe` launches beside the four launches of more tokens and beside the fused kernel on one rank.

Every launch of a graph has experts of its own, so that weights come from memory and not from L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.timing import GRAPH_LAUNCHES, graph_of, time_graphs
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.runtime.expert_call import ExpertCall, ExpertWeightsFp8
from megamoe_dsl.runtime.expert_plan import DeviceExperts
from megamoe_dsl.runtime.experts import moe
from megamoe_dsl.runtime.preparation import compile_ahead, expert_kernels, layer_kernels
from megamoe_dsl.target import Target
from moe_layers.inputs import run_each
from moe_layers.launch_table import FOUR, FUSED
from moe_layers.point import ExpertPoint
from moe_layers.run import fused_layer, fused_problem

LAUNCHES = "four launches"
REPLAYS = 200


def is_fused(point: ExpertPoint) -> bool:
    """Whether the fused kernel takes the layer."""
    return find_kernel("mega_moe").takes(point.recipe)


def compile_few(points: Sequence[ExpertPoint], target: Target, folder: Path) -> int:
    """Compiles what the folder lacks; how many kernels."""
    wanted: list[Any] = []
    for point in points:
        wanted += [*point.layer.configs(target, point.tokens), *expert_kernels(point.layer, target, [point.tokens])]
        wanted += layer_kernels(fused_problem(point.layer, point.tokens), target, ()) if is_fused(point) else []
    return compile_ahead(dict.fromkeys(wanted), ArtifactStore(folder))


def draw_calls(point: ExpertPoint, weights: ExpertWeightsFp8) -> list[ExpertCall]:
    """One for each launch of a graph: normal tokens, and experts drawn evenly."""
    layer, generator = point.layer, torch.Generator("cuda").manual_seed(point.tokens)
    calls = []
    for _ in range(GRAPH_LAUNCHES):
        x = torch.randn(point.tokens, layer.hidden, device="cuda", generator=generator).bfloat16()
        chosen = torch.rand(point.tokens, layer.num_experts, device="cuda", generator=generator).topk(layer.topk, dim=1)
        calls.append(ExpertCall(layer, x, chosen.indices.contiguous(), chosen.values.softmax(dim=1).contiguous(), weights))
    return calls


def launch(call: ExpertCall) -> torch.Tensor:
    """What users call."""
    w = call.weights
    return moe(call.x, w.w1, w.w1_sf, w.w2, w.w2_sf, call.topk_idx, call.topk_weights)


def run_few(points: Sequence[ExpertPoint], target: Target, folder: Path, replays: int = REPLAYS) -> Iterator[dict[str, Any]]:
    """A record of each point; models one after another."""
    return run_each(points, lambda point, weights: run_point(point, target, ArtifactStore(folder), weights, replays))


def run_point(point: ExpertPoint, target: Target, store: ArtifactStore, weights: ExpertWeightsFp8, replays: int) -> dict[str, Any]:
    """Results of graph replays that differ from the four launches' in a bit; then times."""
    calls = draw_calls(point, weights)
    four = DeviceExperts(point.layer.configs(target, point.tokens), store, calls[0].x.device)
    expected = [four(replace(call)).clone() for call in calls]
    found = [launch(call) for call in calls]  # before a graph is captured
    graph = graph_of(lambda: [y.copy_(launch(call)) for call, y in zip(calls, found, strict=True)])
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(replays):
        graph.replay()
        for y, other in zip(found, expected, strict=True):
            wrong += (y.view(torch.int16) != other.view(torch.int16)).any()
            y.zero_()
    ways: dict[str, list[Callable[[], Any]]] = {
        FOUR: [partial(launch, call) for call in calls],
        LAUNCHES: [partial(four, call) for call in calls],
    }
    if is_fused(point):
        fused = fused_layer(calls[0], store).func
        ways[FUSED] = [partial(fused, call.x, call.topk_idx, call.topk_weights) for call in calls]
    times = time_graphs({name: in_turn(some) for name, some in ways.items()})
    met = mean(len(call.topk_idx.unique()) for call in calls)
    us = {name: asdict(one) for name, one in times.items()}
    least = point.least_us(met, torch.cuda.get_device_name())
    return {"point": str(point), "tokens": point.tokens, "us": us, "experts_met": met, "least_us": least, "passed": not int(wrong)}


def in_turn(launches: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """One of them at a time, round and round."""
    turns = cycle(launches)
    return lambda: next(turns)()
