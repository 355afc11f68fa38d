"""A MoE layer on one GPU, as an operator that torch.compile takes as one node.

    y = moe(x, w1, w1_sf, w2, w2_sf, topk_idx, topk_weights)
    y = moe(x, w1, w1_sf, w2, w2_sf, router_logits=logits, topk=8)

A call launches four kernels on torch's current stream, or one for up to 16 tokens on Hopper, and one more before them for logits.  It does
not synchronize.  The first call with a shape compiles its kernels or loads them from the cache, so make it before a graph is captured.  A
stream keeps up to 64 MiB of workspace between calls (`Scratch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, cast

import torch

from ..blocks.gemm.problem import F32, I32, I64
from ..kernels.expert_layer import ExpertLayer
from ..kernels.expert_routing.problem import SOFTMAX
from ..problem import ProblemError
from .buffers import check_device, check_dims
from .call_plan import CallPlans
from .cpu_experts import layer_on_cpu
from .cuda_kernel import bind_context
from .custom_op import asks_for_gradients, check_no_gradient, define, is_plain_call, takes_tensors
from .device_gemm import check_current
from .expert_call import INDEX_DTYPES, ExpertCall, LayerOperands
from .expert_gradients import (
    BF16,
    MADE,
    QUANTIZED,
    MainGrads,
    QuantizedExperts,
    check_main_grads,
    check_weights,
    define_training,
    forward_weights,
    kept_between_passes,
    refuse_transforms,
)
from .expert_plan import ExpertPlan
from .gemm_tensors import OUTPUTS
from .top_experts import Chosen, RouterTensors, TopExpertsPlan, problem_of, router_logits_of, top_experts

RECIPE_BY_DTYPE = {torch.uint8: "fp8xfp4", torch.bfloat16: "bf16xbf16"}
FP8 = "fp8xfp8"
NVFP4 = "nvfp4xnvfp4"
FLOATS = ("x", "w1", "w2", "topk_weights", "router_logits", "router")
"""Arguments with gradients if weights are bfloat16."""
CONSTANTS = ("w1_sf", "w2_sf", "score_bias", "preactivations", "factors", "w1_bias", "w2_bias")
"""Arguments without gradients."""
CHOOSING = "topk", "score_bias", "token_ids", "hash_table", "replicas", "scores", "groups", "topk_groups", "weight_scale", "replica_shift"
"""Arguments that choose experts from logits."""


@takes_tensors(
    *("x", "w1", "w2"),
    optional=("topk_idx", "topk_weights", "router_logits", "router", "token_ids", "hash_table", "replicas", *CONSTANTS),
    logits="router_logits",
    bias="score_bias",
    scale="weight_scale",
)
def moe(
    x: torch.Tensor,
    w1: torch.Tensor,
    w1_sf: torch.Tensor | None,
    w2: torch.Tensor,
    w2_sf: torch.Tensor | None,
    topk_idx: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
    *,
    router_logits: torch.Tensor | None = None,
    router: torch.Tensor | None = None,
    topk: int | None = None,
    scores: str = SOFTMAX,
    score_bias: torch.Tensor | None = None,
    groups: int = 1,
    topk_groups: int = 1,
    weight_scale: float = 1.0,
    token_ids: torch.Tensor | None = None,
    hash_table: torch.Tensor | None = None,
    replicas: torch.Tensor | None = None,
    replica_shift: int = 0,
    gate_up: str = "gate_first",
    activation: str = "silu",
    preactivations: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    w1_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    activation_clamp: float | None = None,
    recipe: str | None = None,
    main_grads: MainGrads | None = None,
    recompute: bool = False,
    quantized: QuantizedExperts | None = None,
) -> torch.Tensor:
    """A MoE layer with all E experts on this GPU: bfloat16 [T, H].  Weights are E4M3 or BF16 on Hopper, E2M1 or BF16 on Blackwell.

    x              bfloat16 [T, H]; H and I are multiples of 128, with BF16 weights on Hopper of 32.  Unless weights are BF16, x is
                   quantized to E4M3 with a scale per token and 128 channels, on Blackwell 32
    w1, w1_sf      float8_e4m3fn [E, 2 I, H], float32 [E, 2 I / 128, H / 128]; `gate_up` gives the order of the rows
    w2, w2_sf      float8_e4m3fn [E, H, I], float32 [E, H / 128, I / 128].  E2M1 weights and scales come from `gemm_weights`; with bfloat16
                   weights w1_sf and w2_sf are None
    factors        of NVFP4 weights, whose tokens and activated rows become NVFP4: float32 [5, E] from `expert_factors`
    topk_idx       int64 or int32 [T, topk], -1 masks a slot; and topk_weights, float32 or bfloat16 [T, topk]
    router_logits  float32 or bfloat16 [T, E], instead of topk_idx and topk_weights: one more launch chooses the `topk` best experts
    router         float32 or bfloat16 [E, H], instead of router_logits: one more launch computes FP32 logits of x
    scores, score_bias, groups, topk_groups, weight_scale, token_ids, hash_table, replicas, replica_shift
                   how experts are chosen from logits, as in `top_experts`; by default weights are a softmax over the chosen logits
    gate_up        gate_first, up_first, or interleaved
    activation     of gate and up (activation.py); activation_clamp: their clamp, by default the activation's own, if it has one
    w1_bias, w2_bias  float32 or bfloat16 [E, 2 I] and [E, H], added to FP32 sums; Hopper only
    preactivations bfloat16 [T * topk, 2 I]: the call stores gate and up of every row there, in the column order of w1's rows.  Rows are
                   the unmasked slots, sorted stably by expert
    recipe         number formats, by default those of the weights.  mxf4xmxf4: E2M1 weights, tokens and activated rows.  fp8xfp8, on
                   Blackwell mxfp8xmxfp8: BF16 weights, quantized to E4M3 in each pass, as are operands of gradients
    main_grads     float32 [E, 2 I, H] and [E, H, I]: a backward pass adds the gradients of w1 and w2 here instead of returning them
    recompute      whether a backward pass recomputes gate and up, which saves 2 I values a row for one more GEMM
    quantized      the result of `quantize_experts(w1, w2)` for this recipe; without it a call quantizes w1 and w2

    Gate and up are rounded to BF16.  Their product is rounded to E4M3 with a power-of-two scale per row and 128 (or 32) channels, to BF16,
    or to NVFP4.  The rows of a token are rounded to BF16 and added in FP32 in the order of its slots.

    Threads may call at once, and calls on different streams may overlap.  The tensors' device must be the current one.  With bfloat16
    weights x, w1, w2, topk_weights, router_logits and router have gradients (expert_gradients.py); other tensors that require grad, and
    torch.func, are refused.  Raises `ProblemError`, which names the tensor and what is wrong with it, before any launch.
    """
    variables = x, w1, w2, topk_weights, router_logits, router
    constants = w1_sf, w2_sf, score_bias, preactivations, factors, w1_bias, w2_bias
    refuse_transforms((*variables, *constants))
    check_no_gradient(CONSTANTS, constants)
    operands = recipe if recipe is not None and recipe in QUANTIZED and w1.dtype == torch.bfloat16 else BF16
    quantizes = operands != BF16
    trains = w1.dtype == torch.bfloat16 and asks_for_gradients(variables)
    if not trains:
        check_no_gradient(FLOATS, variables)
    if quantizes and not torch.compiler.is_compiling():
        for name, scales in (("w1_sf", w1_sf), ("w2_sf", w2_sf)):
            if scales is not None:
                raise ProblemError(name, "a tensor", f"None of bfloat16 weights, which recipe = {operands} quantizes")
        check_weights(w1, w2, operands, gate_up, activation)
    if quantized is not None:
        if not isinstance(quantized, QuantizedExperts):
            raise ProblemError("quantized", quantized, "None, or what quantize_experts makes")
        if not quantizes:
            raise ProblemError("quantized", "weights in E4M3", f"None but for bfloat16 weights and recipe = {' or '.join(QUANTIZED)}")
        quantized.check(w1, w2, operands)
    if quantizes and not trains:
        w1, w1_sf, w2, w2_sf = forward_weights(w1, w2, quantized or (None,) * MADE, operands, gate_up)
    own = LayerOperands(w1, w1_sf, w2, w2_sf, w1_bias, w2_bias, preactivations, factors)
    layouts = gate_up, activation, activation_clamp, recipe
    if router is not None:
        if router_logits is not None:
            raise ProblemError("router_logits", "a tensor", "None with router")
        router_logits = router_logits_of(x, router)
    if router_logits is not None:
        if topk_idx is not None or topk_weights is not None:
            raise ProblemError("topk_idx", "a tensor", "None with router_logits")
        if topk is None:
            raise ProblemError("topk", None, "a number with router_logits")
        if x.numel() and x.is_cuda and is_plain_call(x) and is_plain_call(router_logits):
            choice = topk, scores, groups, topk_groups, weight_scale, replica_shift
            routing = router_logits, score_bias, token_ids, hash_table, replicas
            return _ROUTED.of((x, *routing, *own), (choice, layouts))(x, routing, own)
        check_rows(x, router_logits)
        limits: Any = {"groups": groups, "topk_groups": topk_groups, "scale": weight_scale}
        tables: Any = {"token_ids": token_ids, "hash_table": hash_table, "replicas": replicas, "replica_shift": replica_shift}
        topk_idx, topk_weights = top_experts(router_logits, topk, scores=scores, bias=score_bias, **limits, **tables)
    else:
        given = topk, score_bias, token_ids, hash_table, replicas, scores, groups, topk_groups, weight_scale, replica_shift
        for (name, usual), one in zip(UNROUTED.items(), given, strict=True):
            if one is not usual and (usual is None or one != usual):
                shown = "a tensor" if isinstance(one, torch.Tensor) else one
                raise ProblemError(name, shown, f"{usual} without router_logits or router")
    if main_grads is not None:
        check_main_grads(main_grads, w1, w2)
    if topk_idx is None or topk_weights is None:
        raise ProblemError("topk_idx, topk_weights", None, "tensors, or router_logits given")
    if trains:
        fields = {"activation_clamp": activation_clamp, "recipe": None if quantizes else recipe}
        for name, given_value in {**dict(zip(CONSTANTS, constants, strict=True)), **fields}.items():
            if name != "score_bias" and given_value is not None:
                raise ProblemError(name, fields.get(name, "a tensor"), "None where bfloat16 weights have gradients")
        wide = topk_weights.float() if topk_weights.dtype == torch.bfloat16 else topk_weights
        return train((x, topk_idx, wide, w1, w2), main_grads, quantized, recompute, gate_up, activation, operands)
    run = launch if is_plain_call(x) else moe_op if preactivations is None else moe_storing_op
    return cast(torch.Tensor, run(x, topk_idx, topk_weights, *own, *layouts))


UNROUTED = {name: signature(moe).parameters[name].default for name in CHOOSING}
"""Defaults of the arguments that choose experts: required if topk_idx is given."""


def train(
    tensors: tuple[torch.Tensor, ...], main_grads: MainGrads | None, quantized: QuantizedExperts | None, recompute: bool, *layout: Any
) -> torch.Tensor:
    """`moe` with a backward pass, of x, chosen experts and bfloat16 weights; `layout` is gate_up, activation and recipe."""
    if not isinstance(recompute, bool):
        raise ProblemError("recompute", recompute, "True or False")
    made = (None,) * MADE if quantized is None else (*quantized[:4], *quantized.transposed)
    y, *_ = moe_training_op(*tensors, *(main_grads or (None, None)), *made, recompute, *layout)
    return y


def check_rows(x: torch.Tensor, router_logits: torch.Tensor) -> None:
    """Raises `ProblemError` for logits of another number of tokens."""
    if x.dim() == router_logits.dim() == 2 and len(x) != len(router_logits):
        raise ProblemError("router_logits.shape", tuple(router_logits.shape), f"({len(x)}, experts)")


def launch(
    x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, *given: Any, routed: Sequence[torch.Tensor] = ()
) -> torch.Tensor:
    """`moe` of chosen experts, inside an operator or without one.  `given` are the fields of `LayerOperands`, then gate_up, activation,
    activation_clamp and recipe.  On a GPU `routed` receives ends, sources and positions."""
    routing, own, layouts = (topk_idx, topk_weights), LayerOperands(*given[:-4]), given[-4:]
    if not x.numel():
        return call_of(x, routing, own, *layouts).y
    if x.device.type == "cpu":
        return layer_on_cpu(call_of(x, routing, own, *layouts))
    return _PLANS.of((x, *routing, *own), layouts)(x, routing, own, routed)


def call_of(
    x: torch.Tensor, routing: Chosen, own: LayerOperands, gate_up: str, activation: str, activation_clamp: float | None, recipe: str | None
) -> ExpertCall:
    """The call of these tensors, checked.  The dtype of the weights gives the default recipe.  Raises `ProblemError`."""
    (idx, topk_weights), w1 = routing, own.w1
    if idx.dtype not in INDEX_DTYPES.values():
        raise ProblemError("topk_idx.dtype", idx.dtype, " or ".join(map(str, INDEX_DTYPES.values())))
    check_dims("w1", w1, 3, "(experts, 2 * intermediate, hidden)")
    check_dims("topk_idx", idx, 2, "(tokens, topk)")
    packed = w1.dtype == torch.uint8
    layer = ExpertLayer(
        w1.shape[2] * (2 if packed else 1),
        w1.shape[1] // 2,
        w1.shape[0],
        idx.shape[1],
        gate_up,
        activation,
        recipe or (NVFP4 if packed and own.factors is not None else RECIPE_BY_DTYPE.get(w1.dtype, FP8)),
        preactivations=own.preactivations is not None,
        activation_clamp=activation_clamp,
        biases=name_of(own.w1_bias),
        indices=I32 if idx.dtype == torch.int32 else I64,
        weights=name_of(topk_weights, F32),
    )
    call = ExpertCall(layer, x, *routing, own.with_scales())
    call.check()
    return call


def name_of(tensor: torch.Tensor | None, other: str = "") -> str:
    """The name of a tensor's dtype in `ExpertLayer`; `other` without a tensor."""
    return other if tensor is None else OUTPUTS.get(tensor.dtype, other or F32)


def _plan(tensors: Sequence[Any], layouts: tuple[Any, ...]) -> ExpertPlan:
    x, idx, topk_weights, *own = tensors
    call = call_of(x, (idx, topk_weights), LayerOperands(*own), *layouts)
    check_current(x.device, "x.device")
    return ExpertPlan(call)


def _routed_plan(tensors: Sequence[Any], others: tuple[Any, ...]) -> ExpertPlan:
    (x, *router), (choice, layouts) = tensors[:6], others
    logits, problem = router[0], problem_of(cast(RouterTensors, tuple(router)), choice)
    check_device("router_logits", logits, x.device)
    check_rows(x, logits)
    slots = (len(logits), problem.topk)
    chosen = logits.new_empty(slots, dtype=torch.int64), logits.new_empty(slots, dtype=torch.float32)
    call = call_of(x, chosen, LayerOperands(*tensors[6:]), *layouts)
    check_current(x.device, "x.device")
    return ExpertPlan(call, TopExpertsPlan(problem, x.device, choice[-1]))


def _fake(x: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.empty_like(x)


_PLANS, _ROUTED = CallPlans(_plan), CallPlans(_routed_plan)
_CHOSEN = "Tensor x, Tensor topk_idx, Tensor topk_weights"
_WEIGHTS = "Tensor w1, Tensor? w1_sf, Tensor w2, Tensor? w2_sf, Tensor? w1_bias, Tensor? w2_bias"
_OTHERS = "Tensor? factors, str gate_up, str activation, float? activation_clamp, str? recipe"


def _training(
    x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, ...]:
    *_, recompute, gate_up, activation, recipe = others
    if x.is_cuda:
        bind_context()  # checkpointing calls this on autograd's thread
    stored, *routed = kept_between_passes(x, topk_idx, w1, recompute, recipe)
    w1, w1_sf, w2, w2_sf = (w1, None, w2, None) if recipe == BF16 else forward_weights(w1, w2, others[2:6], recipe, gate_up)
    own = LayerOperands(w1, w1_sf, w2, w2_sf, preactivations=None if recompute else stored)
    y = launch(x, topk_idx, topk_weights, *own, gate_up, activation, None, recipe, routed=routed if routed[0].numel() else ())
    return y, stored, *routed


moe_op = define("moe", f"({_CHOSEN}, {_WEIGHTS}, Tensor? preactivations, {_OTHERS}) -> Tensor", launch, _fake)
"""`moe` of chosen experts, as an operator without side effects."""

moe_storing_op = define("moe_storing", f"({_CHOSEN}, {_WEIGHTS}, Tensor(a!) preactivations, {_OTHERS}) -> Tensor", launch, _fake)
"""`moe` of chosen experts that stores gate and up, as an operator."""

moe_training_op = define_training(_training)
"""`moe` with gradients: y, then what the backward pass needs (`kept_between_passes`)."""


__all__ = ["moe"]
