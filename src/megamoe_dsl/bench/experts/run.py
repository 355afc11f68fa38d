"""A point on a GPU: checked, then timed, all in one process and in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...artifact.store import ArtifactStore
from ...kernels.expert_routing.config import TopExpertsConfig
from ...kernels.expert_routing.layer import LayerConfigs
from ...kernels.expert_routing.problem import TopExpertsProblem
from ...kernels.gather_gemm.problem import SORTED_BLOCKED
from ...kernels.gemm.problem import ROW_BLOCK
from ...layouts.expert_rows import BlockedRows
from ...quant import dequantize_weight_e4m3
from ...runtime.expert_call import ExpertCall, ExpertWeightsFp8
from ...runtime.expert_plan import DeviceExperts
from ...runtime.experts import moe
from ...runtime.top_experts import top_experts
from ...target import Target
from ..host_time import time_host
from ..timing import graph_of, time_graphs
from .baselines import Launch, torch_layer, torch_top_experts
from .compile import compile_missing
from .deep_gemm import SGLANG_ACTIVATIONS, Activate, deep_gemm_fc1, deep_gemm_layer
from .inputs import TOLERANCE, DrawnCall, draw_weights
from .point import FC1_VARIANTS, ExpertPoint
from .quack_gemms import quack_layers
from .sglang_blocks import SlotBlocks, Sort, sglang_sort, sorted_blocks
from .sglang_triton import CONFIGS, sglang_layer
from .sonic_moe import sonic_layer
from .trace import traced_config

HOST_TOKENS, HOST_REPEATS = 256, 11
"""Up to how many tokens the host is timed; with more it waits for room in the GPU's queue."""
SORTING = "sorting"
"""What sorts slots into blocks, and each layer of SGLang's that does; those without it get blocks worked out before."""


def variants(point: ExpertPoint, target: Target) -> dict[str, LayerConfigs]:
    """The chosen configurations, and those with other tiles of Linear1."""
    chosen = point.layer.configs(target, point.tokens)
    others = {f"{one['block_m']} rows": point.layer.configs(target, point.tokens, **one) for one in FC1_VARIANTS}
    return {"chosen": chosen, **{name: configs for name, configs in others.items() if configs != chosen}}


def compile_points(points: tuple[ExpertPoint, ...], target: Target, folder: Path) -> int:
    """Compiles what the folder lacks; how many kernels."""
    wanted: set[Any] = {config for point in points for configs in variants(point, target).values() for config in configs}
    wanted |= {traced_config(one, target) for one in points}
    wanted |= {TopExpertsConfig.choose(TopExpertsProblem(one.layer.num_experts, one.layer.topk), target) for one in points}
    return compile_missing(wanted, folder)


def bfloat16(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights of all experts in BF16; those that are, themselves."""
    if codes.dtype == torch.bfloat16:
        return codes
    made = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    for expert in range(len(codes)):
        made[expert] = dequantize_weight_e4m3(codes[expert], scales[expert])
    return made


class Sites(NamedTuple):
    """Folders with unpacked wheels of others, or None."""

    deep_gemm: Path | None = None
    sglang: Path | None = None
    quack: Path | None = None
    sonic: Path | None = None


def run_points(points: tuple[ExpertPoint, ...], target: Target, folder: Path, sites: Sites) -> Iterator[dict[str, Any]]:
    """A record of each point; models one after another."""
    for model in dict.fromkeys((point.name, point.recipe) for point in points):
        own = [point for point in points if (point.name, point.recipe) == model]
        weights = draw_weights(own[0].layer)
        as_bf16 = bfloat16(weights.w1, weights.w1_sf), bfloat16(weights.w2, weights.w2_sf)
        for point in own:
            yield run_point(point, target, ArtifactStore(folder), weights, as_bf16, sites)
        del weights, as_bf16
        torch.cuda.empty_cache()


def first_line(error: Exception) -> str:
    """Of what it says."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


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


def drop_ungraphed(ways: dict[str, Launch], ours: set[str], refused: dict[str, str]) -> None:
    """Takes out those of others that a CUDA graph cannot hold: the rest is timed without."""
    for name in ways.keys() - ours:
        try:
            graph_of(ways[name])
        except Exception as error:  # of libraries' many kinds
            del ways[name]
            refused[name] = first_line(error)
    torch.cuda.empty_cache()  # of the memory of those graphs


def sglang_ways(
    point: ExpertPoint, call: ExpertCall, site: Path, refused: dict[str, str]
) -> tuple[dict[str, Launch], dict[str, Callable[[], Launch]]]:
    """Its sorting for its tiles' blocks; and what makes its layer with each tile, with blocks worked out before and sorted each time."""
    sorts: dict[int, Sort] = {}
    layers: dict[str, Callable[[], Launch]] = {}
    for config in CONFIGS.get(point.name, ()):
        block_m, tile = config["BLOCK_SIZE_M"], f"{config['BLOCK_SIZE_M']} x {config['BLOCK_SIZE_N']}"
        try:
            sorts[block_m] = sglang_sort(call, site, block_m)
        except Exception as error:  # of a compiler's many kinds; its layer is timed without
            refused[f"{SORTING}, {block_m} rows"] = first_line(error)
        else:
            layers[f"{SORTING}, sglang {tile}"] = partial(sglang_layer, call, site, config, sorts[block_m])
        blocks = sorted_blocks(call, block_m)
        layers[f"sglang {tile}"] = partial(sglang_layer, call, site, config, partial(SlotBlocks, *blocks))
    return {f"{SORTING}, {block_m} rows": sort for block_m, sort in sorts.items()}, layers


def working_activations(point: ExpertPoint, sites: Sites, refused: dict[str, str]) -> dict[str, Activate]:
    """SGLang's, of gate and up in BF16, those that run."""
    working: dict[str, Activate] = {}
    if sites.deep_gemm is None or sites.sglang is None or not point.layer.formats.scaled:
        return working
    gate_up = torch.zeros(1, 2 * point.layer.intermediate, dtype=torch.bfloat16, device="cuda")
    for name, make in SGLANG_ACTIVATIONS.items():
        try:
            activate = make(sites.sglang)
            activate(gate_up)
            working[name] = activate
        except Exception as error:  # of compilers' many kinds; the others' times are wanted all the same
            refused[f"activation, {name}"] = first_line(error)
    return working


def run_point(
    point: ExpertPoint,
    target: Target,
    store: ArtifactStore,
    weights: ExpertWeightsFp8,
    as_bf16: tuple[torch.Tensor, torch.Tensor],
    sites: Sites,
) -> dict[str, Any]:
    """Errors of every way, times of it and of the four launches, and what rows take."""
    inputs = DrawnCall.draw(point.layer, point.tokens, weights)
    call, errors = inputs.call, {}
    refused: dict[str, str] = {}
    ways: dict[str, Callable[[], Any]] = {}
    found = {name: DeviceExperts(configs, store, call.x.device) for name, configs in variants(point, target).items()}
    for name, experts in found.items():
        ways[f"ours, {name}"] = partial(experts, call)
        errors[f"ours, {name}"] = inputs.error(experts(call))
        ways[f"fc1, {name}"] = partial(experts.fc1, call)
    chosen = found["chosen"]
    logits = torch.randn(call.tokens, call.layer.num_experts, device=call.x.device)
    ways["top_experts"] = partial(top_experts, logits, call.layer.topk)
    ways["torch topk, softmax"] = partial(torch_top_experts, logits, call.layer.topk)
    ways |= {"route": partial(chosen.route, call), "fc2": partial(chosen.fc2, call), "sum": partial(chosen.sum, call)}
    own = set(ways)
    whole: dict[str, Callable[[], Launch]] = {"torch bf16": partial(torch_layer, call, *as_bf16)}
    if sites.sglang is not None and point.layer.formats.scaled:
        sorts, layers = sglang_ways(point, call, sites.sglang, refused)
        ways |= sorts
        whole |= layers
    if sites.quack is not None and not point.layer.formats.scaled:
        try:
            by_tile = quack_layers(call, chosen, sites.quack)
        except ImportError as error:
            by_tile, refused["quack"] = {}, first_line(error)
        for tile, layer in by_tile.items():
            try:
                errors[f"quack layer {tile}"] = inputs.error(layer())
                ways |= {f"quack layer {tile}": layer, f"quack fc1 {tile}": layer.fc1, f"quack fc2 {tile}": layer.fc2}
            except Exception as error:  # of a compiler's many kinds; the others' times are wanted all the same
                refused[f"quack layer {tile}"] = first_line(error)
    if sites.sonic is not None and not point.layer.formats.scaled:
        try:
            ways["sonic-moe"] = sonic_layer(call, sites.sonic)
            errors["sonic-moe"] = inputs.error(ways["sonic-moe"]())
        except Exception as error:  # of a compiler's many kinds, as above
            ways.pop("sonic-moe", None)
            refused["sonic-moe"] = first_line(error)
    activations = working_activations(point, sites, refused)
    if sites.deep_gemm is not None and sites.sglang is not None:
        for name, activate in activations.items():
            whole[f"deep_gemm layer, {name}"] = partial(deep_gemm_layer, call, sites.deep_gemm, sites.sglang, activate)
    for name, make in whole.items():
        try:
            way = make()
            errors[name] = inputs.error(way())
            ways[name] = way
        except Exception as error:  # of compilers' many kinds, as above
            refused[name] = first_line(error)
    if sites.deep_gemm is not None and point.layer.formats.scaled:
        try:
            baselines = deep_gemm_fc1(call, sites.deep_gemm, activations)
            for way in baselines.values():
                way()
            torch.cuda.synchronize()
            ways |= baselines
        except Exception as error:  # as above
            refused["deep_gemm"] = first_line(error)
    drop_ungraphed(ways, own, refused)
    ends = call.ends.tolist()
    counts = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
    met = sum(count > 0 for count in counts)
    return {
        "point": str(point),
        "tokens": point.tokens,
        "flop": point.flop,
        "errors": errors,
        "passed": all(error < TOLERANCE for error in errors.values()),
        "us": {name: asdict(times) for name, times in time_graphs(ways).items()},
        "experts_met": met,
        "hbm_bytes": point.hbm_bytes(met),
        "least_us": point.least_us(met, torch.cuda.get_device_name()),
        "host_us": host_times(inputs, ways) if point.tokens <= HOST_TOKENS else {},
        "refused": refused,
        "rows": {"tokens": point.tokens, "packed": sum(counts), SORTED_BLOCKED: BlockedRows(counts, ROW_BLOCK).num_rows},
    }
