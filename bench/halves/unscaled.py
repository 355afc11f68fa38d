"""The expert-parallel kernels in BF16 at a point: beside the same kernels in FP8, and beside collectives and grouped GEMMs of torch, all in
turns in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from difference import relative_difference
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.ep import (
    FEW_LAUNCHES,
    MANY_TOKENS,
    VARIANT_REPEATS,
    Variant,
    alone,
    bind_variants,
    configs_of,
    rows_of,
    swiglu,
    time_other_tables,
    without_clamp,
)
from megamoe_dsl.bench.point import FP8, SEED, Layer, Point
from megamoe_dsl.bench.timing import launches_of, synchronize, time_back_to_back
from megamoe_dsl.kernels.moe.halves.config import HALVES, EpConfig
from megamoe_dsl.kernels.moe.halves.family import tuned_fields
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import symmetric_buffer
from megamoe_dsl.quant import ExpertWeights, quantize, quantize_weight_e4m3
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target
from torch_layer import TorchLayer

TORCH = "torch"


def point_configs(point: Point, target: Target, variants: Sequence[Variant]) -> dict[str, EpConfig]:
    """By name: of the variants in BF16, and in FP8 of the kernels as they are."""
    usual = configs_of(replace(point, recipe=FP8), target, [Variant(name) for name in HALVES])
    return {**configs_of(point, target, variants), **{f"{FP8} {name}": one for name, one in usual.items()}}


def quantized(weights: ExpertWeights) -> ExpertWeights:
    """BF16 weights as those of fp8xfp8, expert by expert."""
    found: list[torch.Tensor] = []
    for matrices in (weights.fc1, weights.fc2):
        both = [quantize_weight_e4m3(one) for one in matrices]
        found += [torch.stack([one.view(torch.uint8) for one, _ in both]).view(torch.float8_e4m3fn), torch.stack([sf for _, sf in both])]
    return ExpertWeights(*found)


def unscaled_point(
    point: Point, layer: Layer, store: ArtifactStore, target: Target, variants: Sequence[Variant], watchdog_ns: int
) -> dict[str, Any]:
    """Times, and how far results are apart; all ranks together.  What asks for other tables is timed after the others."""
    problem, tokens = without_clamp(point.problem), point.tokens
    configs = point_configs(point, target, variants)
    x, x_sf, *routing = point.draw(SEED)
    inputs = {point.recipe: Inputs(x, x_sf, *routing)}
    inputs[FP8] = Inputs(*quantize(x, replace(problem, recipe=FP8).formats.activations, check=False), *routing)
    weights = {point.recipe: layer.weights, FP8: quantized(layer.weights)}
    ys = {name: torch.empty(tokens, problem.hidden, dtype=torch.bfloat16, device="cuda") for name in (*inputs, TORCH)}
    layers = {}
    for recipe, own in weights.items():
        moe = replace(problem, recipe=recipe)
        keeps = max(one.keeps for one in configs.values() if one.problem.recipe == recipe)
        memory = SymmetricBuffer.allocate(moe, region=symmetric_buffer(moe, keeps))
        made = EpMoE(moe, own, activation=swiglu, store=store, symmetric=memory, watchdog_ns=watchdog_ns)
        given = inputs[recipe]
        made(given.x, given.topk_idx, given.topk_weights, x_sf=given.x_sf if moe.formats.scaled else None, out=ys[recipe])
        made.synchronize()
        layers[recipe] = made
    bound, differing = dict[str, Callable[[], Any]](), list[str]()
    for recipe, made in layers.items():
        launches_of_recipe, others = bind_variants(made, store, configs, ys[recipe])
        bound |= launches_of_recipe
        differing += others
    far = TorchLayer(problem, layer.weights)
    far.load(point.draw(SEED))
    far(ys[TORCH])
    received, rows = far.dispatch()
    acts = far.activate(rows)
    candidates: dict[str, Callable[[], Any]] = {**bound, f"{TORCH} dispatch": far.dispatch}
    candidates[f"{TORCH} combine"] = partial(far.combine, received, acts, ys[TORCH])
    launches = launches_of(tokens) if tokens <= MANY_TOKENS else FEW_LAUNCHES
    times = time_back_to_back(candidates, launches, VARIANT_REPEATS)
    own_layer = layers[point.recipe]
    times |= time_other_tables(own_layer, store, configs, inputs[point.recipe], launches)
    own_layer.route(inputs[point.recipe])
    synchronize()
    between: dict[str, Callable[[], Any]] = {TORCH: partial(far.activate, rows)}
    record = {
        "point": asdict(point),
        "rows": rows_of(own_layer),
        "differences": {name: relative_difference(ys[point.recipe], y) for name, y in ys.items() if name != point.recipe},
        "differing": differing,
        "us": {name: asdict(one) for name, one in times.items()},
        "activation_us": asdict(time_back_to_back(between, launches)[TORCH]),
        "tuned": {half: dict(tuned_fields(half, problem, tokens, target.gpu)) for half in HALVES},
        "dispatch_alone_us": {recipe: asdict(alone(one, inputs[recipe], launches)) for recipe, one in layers.items()},
    }
    candidates.clear()
    bound.clear()
    for one in layers.values():
        one.symmetric.close()
    return record


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    times = ", ".join(f"{name} {one['median']:.0f} us" for name, one in record["us"].items())
    alone_us = ", ".join(f"{recipe} {one['median']:.0f} us" for recipe, one in record["dispatch_alone_us"].items())
    apart = ", ".join(f"{difference:.4f} from {name}" for name, difference in record["differences"].items())
    differing = f"; NOT THE SAME BITS: {record['differing']}" if record["differing"] else ""
    return f"{record['name']}: {times}; dispatch alone {alone_us}; y {apart}{differing}"
