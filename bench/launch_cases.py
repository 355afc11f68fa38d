"""What bench/graph_soak.py launches: small layers and GEMMs of every family, with sets of inputs that differ in routing and size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch

from megamoe_dsl import choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.ep import swiglu
from megamoe_dsl.blocks.gemm.problem import CONTIGUOUS, DENSE, MASKED, PACKED, GemmProblem
from megamoe_dsl.cases import random_inputs, random_weights
from megamoe_dsl.kernel_cases.gemm import gemm_case
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.expert_routing.problem import TopExpertsProblem
from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.kernels.moe.sm90.choose import choose_pool_rows
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.experts import moe
from megamoe_dsl.runtime.gemm import gemm, grouped_gemm
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.preparation import expert_kernels, halves_kernels, layer_kernels
from megamoe_dsl.target import Target
from moe_layers.inputs import draw_weights

HIDDEN, INTERMEDIATE, EXPERTS, TOPK = 1024, 512, 16, 4
TOKENS = (1, 7, 16, 130, 16, 200, 33, 16)
"""Of the sets of a layer."""
MOST, FEW = 256, 16
"""Tokens that a fused layer has room for, and up to which it has a kernel of its own."""
MASKS = (0.0, 0.3, 0.0, 0.0, 1.0, 0.1, 0.0, 0.5)
SKEWED = (False, False, True, True, False, False, True, False)
SEED = 11
WATCHDOG_NS = 120 * 10**9
Call = Callable[[], torch.Tensor]
"""Launches on torch's current stream and returns the result, a new tensor."""


@dataclass(frozen=True)
class LaunchCase:
    """configs    what has to be compiled for a GPU
    calls      one for each set of inputs, with kernels from a store
    fills_gpu  whether its CTAs are on all SMs at once, and wait for one another
    """

    name: str
    configs: Callable[[Target], list[KernelConfig]]
    calls: Callable[[ArtifactStore], list[Call]]
    fills_gpu: bool = False


def layer_problem(recipe: str) -> Problem:
    return Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOPK, 1, MOST, recipe=recipe)


def pool_of(recipe: str, ring: bool) -> int | None:
    return choose_pool_rows(layer_problem(recipe)) if ring else None


def fused_calls(recipe: str, ring: bool, launches: bool, store: ArtifactStore) -> list[Call]:
    """`MegaMoE` on one rank, fused or in a launch per stage: half of the sets quantized, the others BF16, with the kernel of few tokens or
    of the capacity."""
    problem, weights = layer_problem(recipe), random_weights(layer_problem(recipe), 0, SEED, "cuda")
    options_of: dict[str, Any] = {"bounds": (FEW,), "watchdog_ns": WATCHDOG_NS, "pool_rows": pool_of(recipe, ring), "fused": not launches}
    layer = MegaMoE(problem, weights, store=store, **options_of)
    found: list[Call] = []
    for index, (tokens, mask, skew) in enumerate(zip(TOKENS, MASKS, SKEWED, strict=True)):
        x, x_sf, idx, factors = random_inputs(problem, 0, tokens, SEED + index, "cuda", mask, skew)
        bound = FEW if tokens <= FEW else None
        if index % 2 or not problem.formats.scaled:
            x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
            found.append(partial(layer, x, idx, factors, num_tokens_bound=bound))
        else:
            found.append(partial(layer, x, idx, factors, x_sf=x_sf, num_tokens_bound=bound))
    return found


def halves_calls(recipe: str, store: ArtifactStore) -> list[Call]:
    """`EpMoE` on one rank."""
    problem = layer_problem(recipe)
    layer = EpMoE(problem, random_weights(problem, 0, SEED, "cuda"), activation=swiglu, store=store, watchdog_ns=WATCHDOG_NS)
    found: list[Call] = []
    for index, (tokens, mask, skew) in enumerate(zip(TOKENS, MASKS, SKEWED, strict=True)):
        _, _, idx, weights = random_inputs(problem, 0, tokens, SEED + index, "cuda", mask, skew)
        found.append(partial(layer, torch.randn(tokens, HIDDEN, device="cuda").bfloat16(), idx, weights))
    return found


TRAINED = ExpertLayer(512, 256, 4, TOPK, recipe="bf16xbf16", preactivations=True)


def training_calls(recipe: str, store: ArtifactStore) -> list[Call]:
    """Gradients of `moe` in these formats by all that has one, in a row; the store is its cache."""
    w = draw_weights(TRAINED)
    problem = Problem(TRAINED.hidden, TRAINED.intermediate, TRAINED.num_experts, TOPK, 1, MOST, recipe=TRAINED.recipe)
    found: list[Call] = []
    for index, (tokens, mask, skew) in enumerate(zip(TOKENS, MASKS, SKEWED, strict=True)):
        _, _, idx, factors = random_inputs(problem, 0, tokens, SEED + index, "cuda", mask, skew)
        x, dy = (torch.randn(tokens, TRAINED.hidden, device="cuda").bfloat16() for _ in range(2))
        given = [one.clone().requires_grad_() for one in (x, w.w1, w.w2, factors)]
        found.append(partial(gradients, given, idx, dy, None if recipe == TRAINED.recipe else recipe))
    return found


def gradients(given: list[torch.Tensor], idx: torch.Tensor, dy: torch.Tensor, recipe: str | None) -> torch.Tensor:
    """16-bit words of y and of the gradients of x, w1, w2 and top-k weights."""
    x, w1, w2, factors = given
    y = moe(x, w1, None, w2, None, idx, factors, recipe=recipe)
    found = (y.detach(), *torch.autograd.grad(y, given, dy))
    return torch.cat([one.view(torch.int16).flatten() for one in found])


def expert_layer(recipe: str) -> ExpertLayer:
    return ExpertLayer(HIDDEN, INTERMEDIATE, EXPERTS, TOPK, recipe=recipe)


ROUTER = TopExpertsProblem(EXPERTS, TOPK)


def expert_calls(recipe: str, store: ArtifactStore) -> list[Call]:
    """`moe`: half of the sets from logits, the others with experts that are given; the store is its cache."""
    layer = expert_layer(recipe)
    drawn = draw_weights(layer)
    scales = (drawn.w1_sf, drawn.w2_sf) if layer.formats.scaled else (None, None)
    weights = drawn.w1, scales[0], drawn.w2, scales[1]
    found: list[Call] = []
    for index, (tokens, mask, skew) in enumerate(zip(TOKENS, MASKS, SKEWED, strict=True)):
        x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
        if index % 2:
            logits = torch.randn(tokens, EXPERTS, device="cuda") + 4.0 * skew * torch.arange(EXPERTS, device="cuda").neg().exp()
            found.append(partial(moe, x, *weights, router_logits=logits, topk=TOPK))
        else:
            _, _, idx, factors = random_inputs(layer_problem(recipe), 0, tokens, SEED + index, "cuda", mask, skew)
            found.append(partial(moe, x, *weights, idx, factors))
    return found


ROWS: dict[str, list[list[int]]] = {
    DENSE: [[1], [64], [200], [128]],
    PACKED: [[3, 0, 5, 8], [100, 1, 0, 27], [0, 0, 0, 40], [16, 16, 16, 16]],
    MASKED: [[3, 0, 5, 100], [100, 1, 0, 27], [0, 0, 0, 100], [16, 16, 100, 16]],
    CONTIGUOUS: [[128, 0, 128, 128], [100, 1, 0, 27], [0, 0, 0, 40], [256, 16, 16, 16]],
}
"""Rows of each group, of every set.  Sets of masked groups have one capacity, that of their highest count."""


def gemm_problem(kind: str, recipe: str) -> GemmProblem:
    return GemmProblem(512, HIDDEN, kind, len(ROWS[kind][0]), recipe=recipe)


def gemm_sets(kind: str, recipe: str) -> list[Any]:
    """Operands of every set, on the CPU."""
    return [gemm_case(gemm_problem(kind, recipe), rows, SEED + index, exact=False).tensors for index, rows in enumerate(ROWS[kind])]


def gemm_configs(kind: str, recipe: str, target: Target) -> list[KernelConfig]:
    problem = gemm_problem(kind, recipe)
    rows = [tensors.rows for tensors in gemm_sets(kind, recipe)]
    return list(dict.fromkeys(choose(problem, target, one) for one in rows))


def gemm_calls(kind: str, recipe: str, store: ArtifactStore) -> list[Call]:
    """`gemm` or `grouped_gemm` into a copy of what D held before; the store is their cache."""
    found: list[Call] = []
    for tensors in gemm_sets(kind, recipe):
        moved = {one.name: getattr(tensors, one.name) for one in fields(tensors)}
        t = replace(tensors, **{name: None if tensor is None else tensor.cuda() for name, tensor in moved.items()})
        operands = (t.a, t.a_sf, t.b, t.b_sf) if gemm_problem(kind, recipe).formats.scaled else (t.a, None, t.b, None)
        found.append(
            partial(into_a_copy, t.d, partial(gemm, *operands) if kind == DENSE else partial(grouped_gemm, *operands, t.groups, kind=kind))
        )
    return found


def into_a_copy(before: torch.Tensor, call: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The result of a call that leaves a part of its output alone."""
    return call(out=before.clone())


def fused(recipe: str, ring: bool = False, launches: bool = False) -> LaunchCase:
    def configs(target: Target) -> list[KernelConfig]:
        return layer_kernels(layer_problem(recipe), target, (FEW,), pool_rows=pool_of(recipe, ring), fused=not launches)

    name = f"{'unfused' if launches else 'fused'} {recipe}{' ring' * ring}"
    return LaunchCase(name, configs, partial(fused_calls, recipe, ring, launches), fills_gpu=True)


def halves(recipe: str) -> LaunchCase:
    return LaunchCase(f"halves {recipe}", partial(halves_kernels, layer_problem(recipe)), partial(halves_calls, recipe), fills_gpu=True)


def experts(recipe: str) -> LaunchCase:
    def configs(target: Target) -> list[KernelConfig]:
        return expert_kernels(expert_layer(recipe), target, TOKENS, ROUTER)

    return LaunchCase(f"moe {recipe}", configs, partial(expert_calls, recipe))


def training(recipe: str) -> LaunchCase:
    def configs(target: Target) -> list[KernelConfig]:
        layer = replace(TRAINED, recipe=recipe)
        forward = [one for tokens in TOKENS for one in layer.configs(target, tokens)]
        backward = [choose(one, target, tokens * TOPK) for tokens in TOKENS for one in layer.backward()]
        return list(dict.fromkeys([*forward, *backward]))

    return LaunchCase(f"training {recipe}", configs, partial(training_calls, recipe))


def gemms(kind: str, recipe: str) -> LaunchCase:
    family = "decoding" if gemm_problem(kind, recipe).decodes else "gemm"
    return LaunchCase(f"{family} {kind} {recipe}", partial(gemm_configs, kind, recipe), partial(gemm_calls, kind, recipe))


FP8, BF16, PACKED_WEIGHTS = "fp8xfp8", "bf16xbf16", "fp8xmxfp4"
CASES = (
    experts(FP8),
    experts(BF16),
    training(BF16),
    training(FP8),
    fused(FP8),
    fused(BF16),
    fused(PACKED_WEIGHTS),
    fused(PACKED_WEIGHTS, ring=True),
    fused(FP8, launches=True),
    halves(FP8),
    halves(BF16),
    *(gemms(kind, recipe) for kind, recipe in ((DENSE, FP8), (PACKED, FP8), (MASKED, BF16), (CONTIGUOUS, FP8), (DENSE, PACKED_WEIGHTS))),
)
