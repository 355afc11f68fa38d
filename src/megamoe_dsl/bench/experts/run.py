"""A point on a GPU: checked, then timed, all in one process and in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...artifact.compile import compile_kernel
from ...artifact.store import ArtifactStore
from ...kernels.expert_routing.layer import LayerConfigs
from ...kernels.gather_gemm.problem import SORTED_BLOCKED
from ...kernels.gemm.problem import ROW_BLOCK
from ...layouts.expert_rows import BlockedRows
from ...quant import dequantize_weight_e4m3
from ...runtime.expert_call import ExpertWeightsFp8
from ...runtime.expert_plan import DeviceExperts
from ...runtime.experts import moe
from ...target import Target
from ..host_time import time_host
from ..timing import time_graphs
from .baselines import deep_gemm_fc1, torch_layer
from .inputs import TOLERANCE, DrawnCall, draw_weights
from .point import FC1_VARIANTS, ExpertPoint

HOST_TOKENS, HOST_REPEATS = 256, 11
"""Up to how many tokens the host is timed; with more it waits for room in the GPU's queue."""


def variants(point: ExpertPoint, target: Target) -> dict[str, LayerConfigs]:
    """The chosen configurations, and those with other tiles of Linear1."""
    chosen = point.layer.configs(target, point.tokens)
    others = {f"{one['block_m']} rows": point.layer.configs(target, point.tokens, **one) for one in FC1_VARIANTS}
    return {"chosen": chosen, **{name: configs for name, configs in others.items() if configs != chosen}}


def compile_points(points: tuple[ExpertPoint, ...], target: Target, folder: Path) -> int:
    """Compiles what the folder lacks; how many kernels."""
    store = ArtifactStore(folder)
    wanted = {config for point in points for configs in variants(point, target).values() for config in configs}
    missing = [config for config in wanted if not store.path(config).exists()]
    for config in missing:
        store.save(compile_kernel(config))
    return len(missing)


def bfloat16(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights of all experts in BF16."""
    made = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    for expert in range(len(codes)):
        made[expert] = dequantize_weight_e4m3(codes[expert], scales[expert])
    return made


def run_points(points: tuple[ExpertPoint, ...], target: Target, folder: Path, site: Path | None) -> Iterator[dict[str, Any]]:
    """A record of each point; models one after another."""
    for name in dict.fromkeys(point.name for point in points):
        own = [point for point in points if point.name == name]
        weights = draw_weights(own[0].layer)
        as_bf16 = bfloat16(weights.w1, weights.w1_sf), bfloat16(weights.w2, weights.w2_sf)
        for point in own:
            yield run_point(point, target, ArtifactStore(folder), weights, as_bf16, site)
        del weights, as_bf16
        torch.cuda.empty_cache()


def host_times(inputs: DrawnCall, ways: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Of calls of the operator, with experts chosen and with logits, of the torch layer, and of an addition in place."""
    call = inputs.call
    given = partial(moe, call.x, *vars(call.weights).values())
    logits = torch.randn(call.tokens, call.layer.num_experts, device=call.x.device)
    calls: dict[str, Callable[[], Any]] = {
        "moe": partial(given, topk_idx=call.topk_idx, topk_weights=call.topk_weights),
        "moe, logits": partial(given, router_logits=logits, topk=call.layer.topk),
        "torch add_": partial(torch.zeros_like(call.x).add_, 1),
        **{name: way for name, way in ways.items() if name == "torch bf16"},
    }
    return {name: asdict(times) for name, times in time_host(calls, repeats=HOST_REPEATS).items()}


def run_point(
    point: ExpertPoint,
    target: Target,
    store: ArtifactStore,
    weights: ExpertWeightsFp8,
    as_bf16: tuple[torch.Tensor, torch.Tensor],
    site: Path | None,
) -> dict[str, Any]:
    """Errors of every way, times of it and of the four launches, and what rows take."""
    inputs = DrawnCall.draw(point.layer, point.tokens, weights)
    call, errors, refused = inputs.call, {}, {}
    ways: dict[str, Callable[[], Any]] = {}
    found = {name: DeviceExperts(configs, store, call.x.device) for name, configs in variants(point, target).items()}
    for name, experts in found.items():
        ways[f"ours, {name}"] = partial(experts, call)
        errors[f"ours, {name}"] = inputs.error(experts(call))
        ways[f"fc1, {name}"] = partial(experts.fc1, call)
    chosen = found["chosen"]
    ways |= {"route": partial(chosen.route, call), "fc2": partial(chosen.fc2, call), "sum": partial(chosen.sum, call)}
    one = torch_layer(call, *as_bf16)
    try:
        errors["torch bf16"] = inputs.error(one())
        ways["torch bf16"] = one
    except (RuntimeError, AttributeError) as error:
        refused["torch bf16"] = str(error).splitlines()[0]
    if site is not None:
        try:
            baselines = deep_gemm_fc1(call, site)
            for way in baselines.values():
                way()
            torch.cuda.synchronize()
            ways |= baselines
        except (RuntimeError, ImportError, AssertionError) as error:
            refused["deep_gemm"] = str(error).splitlines()[0] if str(error) else type(error).__name__
    ends = call.ends.tolist()
    counts = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
    return {
        "point": str(point),
        "tokens": point.tokens,
        "flop": point.flop,
        "errors": errors,
        "passed": all(error < TOLERANCE for error in errors.values()),
        "us": {name: asdict(times) for name, times in time_graphs(ways).items()},
        "host_us": host_times(inputs, ways) if point.tokens <= HOST_TOKENS else {},
        "refused": refused,
        "rows": {"tokens": point.tokens, "packed": sum(counts), SORTED_BLOCKED: BlockedRows(counts, ROW_BLOCK).num_rows},
    }
