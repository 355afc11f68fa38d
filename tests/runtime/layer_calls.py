"""Layers on a recorded GPU, two on one buffer, their calls, and what each may be changed to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from calls_in_a_row import Call, changes_of_place, changes_of_tensors
from megamoe_dsl import MegaMoE, Problem, random_weights
from megamoe_dsl.compat import deep_gemm
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import symmetric_buffer as ep_buffer
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from recorded_gpu import RecordedGpu

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
MOE = Problem(512, 256, 4, 2, 1, 64, recipe="fp8xfp8")


def layers_on(gpu: RecordedGpu, problem: Problem = MOE) -> Any:
    """Two layers on one buffer."""
    symmetric = SymmetricBuffer.allocate(problem)
    gpu.show(sym=symmetric.sym, peers=symmetric.peers, watchdog=symmetric.watchdog)

    @cache
    def made(name: str) -> MegaMoE:
        layer = MegaMoE(problem, symmetric=symmetric, bounds=(3,))
        tensors = {"stats": layer.stats, **{one: getattr(layer.memory.weights, one) for one in ("fc1", "fc1_sf", "fc2", "fc2_sf")}}
        gpu.show(**{f"{name} {one}": tensor for one, tensor in tensors.items()})
        gpu.show(**{f"{name} maps {bound}": kernel.buffers.maps for bound, kernel in layer.kernels.items()})
        return layer

    made("first")
    return lambda layer, **given: made(layer)(**given)


def layer_call(tokens: int = 2) -> Call:
    given = {"x": torch.zeros(tokens, 512, dtype=FP8), "x_sf": torch.ones(tokens, 4), "topk_idx": torch.zeros(tokens, 2, dtype=torch.int64)}
    return Call({"layer": "first", **given, "topk_weights": torch.ones(tokens, 2), "num_tokens_bound": 3})


def layer_changes(call: Call) -> dict[str, Call]:
    own = ("x", "x_sf", "topk_idx", "topk_weights")
    out = torch.zeros(3, 512, dtype=BF16)
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "another layer": call.but(layer="second"),
        "one token": call.but(**{name: call.arguments[name][:1] for name in own}),
        "no token": call.but(**{name: call.arguments[name][:0] for name in own}),
        "more tokens": call.but(**{name: call.arguments[name].repeat(4, 1) for name in own}, num_tokens_bound=None),
        "too many tokens": call.but(**{name: call.arguments[name].repeat(4, 1) for name in own}),
        "another bound": call.but(num_tokens_bound=64),
        "out of other rows": call.but(out=out),
        "out, far": replace(call.but(out=out[:2].clone()), far=("out",)),
        "int32": call.but(topk_idx=call.arguments["topk_idx"].int()),
        "bf16": call.but(x=torch.zeros(2, 512, dtype=BF16), x_sf=None),
        "bf16, shifted": call.but(x=torch.zeros(1025, dtype=BF16)[1:].view(2, 512), x_sf=None),
    }


def few_call() -> Call:
    """Of a layer with packed weights, which takes one launch."""
    given = layer_call().arguments
    return layer_call().but(
        x=torch.zeros(2, 512, dtype=BF16), x_sf=None, topk_idx=given["topk_idx"].clone(), topk_weights=given["topk_weights"].clone()
    )


def few_changes(call: Call) -> dict[str, Call]:
    own = ("x", "topk_idx", "topk_weights")
    out = torch.zeros(1025, dtype=BF16)[1:].view(2, 512)
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "another layer": call.but(layer="second"),
        "one token": call.but(**{name: call.arguments[name][:1] for name in own}),
        "more tokens": call.but(**{name: call.arguments[name].repeat(6, 1) for name in own}, num_tokens_bound=None),
        "int32": call.but(topk_idx=call.arguments["topk_idx"].int()),
        "out of odd places": call.but(out=out),
    }


def deep_gemm_on(gpu: RecordedGpu) -> Any:
    """Both functions of a buffer, by name."""
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(SimpleNamespace(size=lambda: 1, rank=lambda: 0), 4, 16, 2, 256, 128)
    gpu.show(sym=buffer.symmetric.sym, peers=buffer.symmetric.peers, watchdog=buffer.symmetric.watchdog)

    def call(y: torch.Tensor, l1: Any, l1_scales: Any, l2: Any, l2_scales: Any, stats: Any, **options: Any) -> None:
        deep_gemm.fp8_mega_moe(y, (l1, l1_scales), (l2, l2_scales), buffer, stats, **options)

    def stage(x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, factor: float = 1.0, tokens: int = 2) -> None:
        views = buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights
        deep_gemm.mega_moe_pre_dispatch_sm90(x, topk_idx, topk_weights, *views, tokens, routed_scaling_factor=factor)

    return lambda **given: (call if "y" in given else stage)(**given)


def deep_gemm_call() -> Call:
    w = random_weights(Problem(256, 128, 4, 2, max_tokens_per_rank=16, recipe="fp8xfp8"), 0, 0)
    (l1, l1_scales), (l2, l2_scales) = deep_gemm.transform_weights_for_mega_moe_sm90((w.fc1, w.fc1_sf), (w.fc2, w.fc2_sf))
    given = {"y": torch.zeros(2, 256, dtype=BF16), "l1": l1, "l1_scales": l1_scales, "l2": l2, "l2_scales": l2_scales}
    return Call({**given, "stats": torch.zeros(4, dtype=torch.int32)})


def deep_gemm_changes(call: Call) -> dict[str, Call]:
    some = changes_of_tensors(call), changes_of_place(call)
    return {
        **{name: one for made in some for name, one in made.items() if "capture" not in name},
        "one token": call.but(y=call.arguments["y"][:1]),
        "another activation": call.but(activation="situ"),
        "another clamp": call.but(activation_clamp=3.0),
        "exact": call.but(fast_math=False),
        "another bound": call.but(num_tokens_bound=2),
    }


def staged_call() -> Call:
    x, idx = torch.zeros(3, 256, dtype=BF16), torch.zeros(3, 2, dtype=torch.int64)
    return Call({"x": x, "topk_idx": idx, "topk_weights": torch.ones(3, 2)})


def staged_changes(call: Call) -> dict[str, Call]:
    some = changes_of_tensors(call), changes_of_place(call)
    return {
        **{name: one for made in some for name, one in made.items() if "capture" not in name},
        "one token": call.but(tokens=1),
        "int32": call.but(topk_idx=call.arguments["topk_idx"].int()),
        "times two": call.but(factor=2.0),
    }


def ep_on(gpu: RecordedGpu) -> Any:
    """Two layers on one buffer."""
    problem = Problem(256, 128, 4, 2, 1, 8, recipe="fp8xfp8")
    symmetric = SymmetricBuffer.allocate(problem, region=ep_buffer(problem))
    gpu.show(sym=symmetric.sym, peers=symmetric.peers, watchdog=symmetric.watchdog)
    fc1, fc2 = torch.zeros(4, 256, 256, dtype=FP8), torch.zeros(4, 256, 128, dtype=FP8)

    @cache
    def made(name: str) -> EpMoE:
        weights = ExpertWeights(fc1.clone(), torch.ones(4, 2, 2), fc2.clone(), torch.ones(4, 2, 1))
        layer = EpMoE(problem, weights, activation=lambda rows: rows[:, :128], symmetric=symmetric)
        own = {"rows": layer.rows, "acts": layer.acts.values, "acts_sf": layer.acts.scales, "nowhere": layer._nowhere}
        gpu.show(**{f"{name} {one}": tensor for one, tensor in {**own, **vars_of(weights)}.items()})
        return layer

    made("first")
    return lambda layer, **given: made(layer)(**given)


def vars_of(weights: ExpertWeights) -> dict[str, torch.Tensor]:
    return {name: getattr(weights, name) for name in ("fc1", "fc1_sf", "fc2", "fc2_sf")}


def ep_call() -> Call:
    given = {"x": torch.zeros(2, 256, dtype=BF16), "topk_idx": torch.zeros(2, 2, dtype=torch.int64), "topk_weights": torch.ones(2, 2)}
    return Call({"layer": "first", **given, "out": torch.zeros(2, 256, dtype=BF16)})


def ep_changes(call: Call) -> dict[str, Call]:
    given = {name: one for name, one in call.arguments.items() if name != "layer"}
    return {
        **{name: one for name, one in changes_of_tensors(call).items() if name != "x, shifted"},
        **changes_of_place(call),
        "another layer": call.but(layer="second"),
        "x of odd places": call.but(x=torch.zeros(2 * 256 + 1, dtype=BF16)[1:].view(2, 256)),
        "one token": call.but(**{name: one[:1] for name, one in given.items()}),
        "no token": call.but(**{name: one[:0] for name, one in given.items()}),
        "too many tokens": call.but(**{name: one.repeat(5, 1) for name, one in given.items()}),
        "int32": call.but(topk_idx=given["topk_idx"].int()),
        "quantized": call.but(x=given["x"].to(FP8), x_sf=torch.ones(2, 2)),
        "scattered": call.but(topk_idx=torch.tensor([[0, 1], [0, 1]]), scatter_indices=torch.tensor([[1, 1], [0, 0]])),
    }
