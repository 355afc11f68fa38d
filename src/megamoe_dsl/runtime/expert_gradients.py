"""`moe` with gradients: operators of the forward pass that keeps gate and up, and of the stages of the backward pass.

Between the passes a call keeps x, the routing, the weights, and gate and up of every row (2 I BF16 values); or the backward pass routes
again and recomputes gate and up.  The first stage makes dH and w A, from which later stages make gradients of tokens and weights.  Stages
without a requested gradient do not run.  In FP8 and MXFP8 the rows of each expert are padded, and weights are quantized by each pass or
once by `quantize_experts`.

CPU tensors take the reference (reference/expert_gradients.py), CUDA tensors kernels (device_gradients.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ..activation import SILU
from ..blocks.gemm.problem import ALIGNED, GATE_FIRST, PACKED, ROW_BLOCK, SUMMED_RECIPES
from ..kernels.expert_layer import ExpertLayer
from ..problem import Problem, ProblemError
from ..quant import no_scales, quantize
from ..recipe import RECIPES
from ..reference import expert_gradients as reference
from ..reference.expert_gradients import RowGradients
from ..reference.router import RouterMetadata, router_metadata
from . import device_gradients
from .buffers import check_dims, check_tensor
from .cpu_experts import gate_then_up, rows_of_w1
from .custom_op import define, define_stage, differentiate, is_plain_call, takes_tensors
from .gemm_scales import gate_up_words, scale_bytes, scale_words
from .k_grouped_gemm import QuantizedBoth, add_columns, numbers_of, padded_rows, quantized

MainGrads = tuple[torch.Tensor, torch.Tensor]
"""float32 [E, 2I, H] and [E, H, I], to which a backward pass adds the gradients of w1 and w2."""

BF16, *QUANTIZED = SUMMED_RECIPES
"""Recipes of layers that train: bfloat16 operands, and operands that each pass quantizes."""


class QuantizedExperts(NamedTuple):
    """Weights of experts in E4M3, for forward and backward passes.  Scales are float32 for 128 x 128, or `scale_words` of MXFP8."""

    w1: torch.Tensor  # [E, 2I, H]
    w1_sf: torch.Tensor
    w2: torch.Tensor  # [E, H, I]
    w2_sf: torch.Tensor
    transposed: tuple[torch.Tensor, ...]  # the same four, of the transposed matrices
    origin: tuple[int, ...]  # `origin_of` the bfloat16 weights
    recipe: str

    def check(self, w1: torch.Tensor, w2: torch.Tensor, recipe: str) -> None:
        """Raises `ProblemError` unless these are of this recipe and of these weights, unchanged since."""
        if self.recipe != recipe:
            raise ProblemError("quantized.recipe", self.recipe, f"{recipe}, as the layer's")
        for name, weight, own in (("w1", w1, self.w1), ("w2", w2, self.w2)):
            check_tensor(f"quantized.{name}", own, torch.float8_e4m3fn, tuple(weight.shape), weight.device)
        if not torch.compiler.is_compiling() and self.origin != origin_of(w1, w2):
            raise ProblemError("quantized", "of other weights, or of weights that have changed since", "quantize_experts(w1, w2) of these")


def origin_of(*weights: torch.Tensor) -> tuple[int, ...]:
    """Address and version counter of each; inference tensors have no counter."""
    return tuple(fact for one in weights for fact in (one.data_ptr(), 0 if one.is_inference() else one._version))


@takes_tensors("w1", "w2")
def quantize_experts(w1: torch.Tensor, w2: torch.Tensor, *, recipe: str = QUANTIZED[0]) -> QuantizedExperts:
    """Quantized weights for `moe(..., recipe=recipe, quantized=...)`.  Make them once after each optimizer step.

    w1, w2  bfloat16 [E, 2I, H] and [E, H, I], H and I multiples of 128
    recipe  fp8xfp8, or on Blackwell mxfp8xmxfp8

    `moe` refuses them after in-place changes of the weights, but cannot notice writes to `.data`.  Raises `ProblemError`.
    """
    if recipe not in QUANTIZED:
        raise ProblemError("recipe", recipe, " or ".join(QUANTIZED))
    check_weights(w1, w2, recipe)
    with torch.no_grad():
        first, first_sf, second, second_sf, *turned = [
            one for transposed in (False, True) for w in (w1, w2) for one in quantize_weights(w, transposed, recipe)
        ]
    return QuantizedExperts(first, first_sf, second, second_sf, tuple(turned), origin_of(w1, w2), recipe)


def check_weights(w1: torch.Tensor, w2: torch.Tensor, recipe: str, gate_up: str = GATE_FIRST, activation: str = SILU) -> None:
    """Raises `ProblemError` for bfloat16 weights of a shape that the recipe does not support."""
    check_dims("w1", w1, 3, "(experts, 2 * intermediate, hidden)")
    experts, n, hidden = w1.shape
    layer = ExpertLayer(hidden, n // 2, experts, 1, gate_up, activation, recipe)
    check_tensor("w1", w1, torch.bfloat16, (experts, 2 * layer.intermediate, hidden), w1.device)
    check_tensor("w2", w2, torch.bfloat16, (experts, hidden, layer.intermediate), w1.device)


def refuse_transforms(tensors: Sequence[torch.Tensor | None]) -> None:
    """Raises `ProblemError` for tensors under `torch.func` or with a tangent: there are no gradients of gradients."""
    tracked, dual = torch._C._functorch.is_gradtrackingtensor, torch.autograd.forward_ad
    inside = torch._C._functorch.maybe_current_level() is not None or dual._current_level >= 0
    differentiated = (one is not None and (tracked(one) or dual.unpack_dual(one).tangent is not None) for one in tensors)
    if inside and not torch.compiler.is_compiling() and any(differentiated):
        raise ProblemError("torch.func", "a transform", "left out: gradients come from backward() or torch.autograd.grad")


def check_main_grads(main_grads: MainGrads, w1: torch.Tensor, w2: torch.Tensor) -> None:
    """Raises `ProblemError` unless these are two float32 tensors with the shapes of the weights."""
    if not (isinstance(main_grads, Sequence) and len(main_grads) == 2 and all(isinstance(one, torch.Tensor) for one in main_grads)):
        raise ProblemError("main_grads", main_grads, "None, or two tensors, as w1 and w2")
    for name, total, weight in zip(("main_grads[0]", "main_grads[1]"), main_grads, (w1, w2), strict=True):
        check_tensor(name, total, torch.float32, tuple(weight.shape), weight.device)


def problem_of(activation: str) -> Problem:
    """A problem with this activation; its other fields do not matter."""
    return Problem(256, 128, 1, 1, activation=activation)


def _routing(ends: torch.Tensor, sources: torch.Tensor, positions: torch.Tensor) -> RouterMetadata:
    """Routing, without undefined entries of `sources`."""
    return RouterMetadata(ends.diff(prepend=ends.new_zeros(1)), ends, sources[: int(ends[-1])], positions)


def _route(x: torch.Tensor, topk_idx: torch.Tensor, experts: int, recipe: str) -> tuple[torch.Tensor, ...]:
    found = router_metadata(topk_idx.where((topk_idx >= 0) & (topk_idx < experts), -1), experts)
    sources = found.sources.new_zeros(topk_idx.numel())
    sources[: len(found.sources)] = found.sources
    form = RECIPES[recipe].activations
    quantized = quantize(x, form, check=False) if form.scale else device_gradients.new_quantized(x, recipe)
    return found.ends, sources, found.positions, *quantized


def _quantize_weights(w: torch.Tensor, transposed: bool, recipe: str) -> tuple[torch.Tensor, torch.Tensor]:
    codes, sf = quantize(w.mT.contiguous() if transposed else w, RECIPES[recipe].weights)
    return codes, sf if sf.dtype == torch.float32 else scale_words(sf)


def _sums(
    a: torch.Tensor, a_sf: torch.Tensor, w: torch.Tensor, w_sf: torch.Tensor, ends: torch.Tensor, sources: torch.Tensor
) -> tuple[RouterMetadata, torch.Tensor]:
    """Routing, and FP32 products of each expert's rows of a, gathered by `sources`; scales may be `scale_words`."""
    routing = _routing(ends, sources, sources)
    rows = routing.sources.long()
    of_rows = a.view(torch.uint8)[rows].view(a.dtype), scale_bytes(a_sf)[rows]
    return routing, reference.expert_sums(of_rows, (w, scale_bytes(w_sf)), routing.counts)


def _preactivations(*given: torch.Tensor) -> torch.Tensor:
    routing, sums = _sums(*given)
    found = sums.new_zeros(len(given[-1]), given[2].shape[1], dtype=torch.bfloat16)
    found[: len(routing.sources)] = sums
    return found


def _row_gradients(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dy, dy_sf, topk_weights, w2, w2_sf, stored, ends, sources, positions, gate_up, activation = given
    routing, raw = _sums(dy, dy_sf, w2, w2_sf, ends, sources)
    columns = (lambda rows: gate_then_up(rows, gate_up)), (lambda rows: rows_of_w1(rows, gate_up))
    routing = replace(routing, positions=positions)
    found = reference.row_gradients(problem_of(activation), raw, routing, topk_weights, stored, columns)
    rows, weighted = torch.zeros_like(stored), stored.new_zeros(len(stored), w2.shape[1])
    rows[: len(found.rows)], weighted[: len(found.rows)] = found.rows, found.weighted
    return rows, weighted, found.topk_weights


def _token_gradients(*given: torch.Tensor) -> torch.Tensor:
    rows, rows_sf, w1, w1_sf, ends, positions = given
    routing, sums = _sums(rows, rows_sf, w1, w1_sf, ends, torch.arange(len(rows), device=rows.device))
    return reference.token_gradients(sums.bfloat16(), replace(routing, positions=positions))


def _weight_gradients(total: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, *others: Any) -> None:
    ends, sources, tokens_first, kind = others if len(others) == 4 else (*others, PACKED)
    step = ROW_BLOCK if kind == ALIGNED else 1
    begins = -(-torch.nn.functional.pad(ends[:-1], (1, 0)) // step) * step
    kept = torch.cat([torch.arange(*one) for one in zip(begins.tolist(), ends.tolist(), strict=True)])
    routing = _routing((ends - begins).cumsum(0), sources[kept], sources)
    pair = rows[kept], tokens[routing.sources.long()]
    sums = reference.weight_gradients(*(pair[::-1] if tokens_first else pair), routing)
    total.copy_(total + sums if total.dtype == torch.float32 else sums)


route = define_stage(
    "moe_route",
    device_gradients.route,
    _route,
    lambda x, idx, experts, recipe: (
        *(idx.new_empty(shape, dtype=torch.int32) for shape in (experts, idx.numel(), idx.shape)),
        *device_gradients.new_quantized(x, recipe),
    ),
)
quantize_weights = define_stage("moe_quantize_weights", device_gradients.quantize_weights, _quantize_weights, device_gradients.new_weights)
preactivations = define_stage(
    "moe_preactivations",
    device_gradients.preactivations,
    _preactivations,
    lambda x, x_sf, w1, w1_sf, ends, sources: x.new_empty((len(sources), w1.shape[1]), dtype=torch.bfloat16),
)
row_gradients = define_stage(
    "moe_row_gradients",
    device_gradients.row_gradients,
    _row_gradients,
    lambda dy, sf, weights, w2, w2_sf, stored, *_: (
        torch.empty_like(stored),
        stored.new_empty(len(stored), w2.shape[1]),
        torch.empty_like(weights),
    ),
)
token_gradients = define_stage(
    "moe_token_gradients",
    device_gradients.token_gradients,
    _token_gradients,
    lambda rows, rows_sf, w1, w1_sf, ends, positions: rows.new_empty((len(positions), w1.shape[1]), dtype=torch.bfloat16),
)
weight_gradients = define_stage(
    "moe_weight_gradients", device_gradients.weight_gradients, _weight_gradients, lambda *_: None, writes=("total",)
)


MADE = 8  # tensors of `QuantizedExperts`
ARGUMENTS = 5 + 2 + MADE + 4  # of the operator: x, routing and weights; totals; weights in E4M3; what is no tensor


def kept_between_passes(
    x: torch.Tensor, topk_idx: torch.Tensor, w1: torch.Tensor, recompute: bool, recipe: str
) -> tuple[torch.Tensor, ...]:
    """Uninitialized tensors that the forward pass writes for the backward pass: gate and up of every row, ends, sources and positions;
    empty if the backward pass recomputes them."""
    routes = recompute or recipe != BF16 or x.device.type == "cpu"
    tokens, topk = topk_idx.shape
    shapes = ((0,), (0,), (0, topk)) if routes else ((len(w1),), (tokens * topk,), (tokens, topk))
    routed = (topk_idx.new_empty(shape, dtype=torch.int32) for shape in shapes)
    return x.new_empty(0 if recompute else topk_idx.numel(), w1.shape[1]), *routed


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.recompute, ctx.gate_up, ctx.activation, ctx.recipe = inputs
    _, *kept = output
    ctx.save_for_backward(*tensors[:5], *kept, *tensors[7:])
    ctx.totals = tensors[5:7]  # not saved by autograd, because every backward pass changes them
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: torch.Tensor | None, *_: object) -> tuple[Any, ...]:
    x, idx, weights, w1, w2, stored, *others = ctx.saved_tensors
    kept, made = others[:3], others[3:]
    if dy is None:
        return (None,) * ARGUMENTS
    if torch.is_grad_enabled():
        raise ProblemError("create_graph", True, "False: moe has no gradient of its gradients")
    if not len(x):
        needed = zip((x, idx, weights, w1, w2), ctx.needs_input_grad, strict=False)
        return (*(torch.zeros_like(one) if need else None for one, need in needed), *[None] * (ARGUMENTS - 5))
    dy, recipe = dy.contiguous(), ctx.recipe
    ends, sources, positions, *rows = (*kept, *unscaled(dy)) if kept[0].numel() else routed(dy, idx, len(w1), recipe)
    if ctx.recompute:
        stored = preactivations(*routed(x, idx, len(w1), recipe)[3:], *matrices(w1, recipe, made[:2]), ends, sources)
    given = weights, *matrices(w2, recipe, made[6:], transposed=True), stored, ends, sources, positions, ctx.gate_up, ctx.activation
    found = RowGradients(*row_gradients(*rows, *given))
    _, _, of_weights, *_ = ctx.needs_input_grad
    products = _packed_products if recipe == BF16 else _padded_products
    dx, dw1, dw2 = products(ctx, found, x, dy, w1, w2, ends, sources, positions, *made[4:6])
    return dx, None, found.topk_weights if of_weights else None, dw1, dw2, *[None] * (ARGUMENTS - 5)


def unscaled(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """BF16 values, and the empty scales (`no_scales`) that stand beside them."""
    return values, no_scales(values)


def routed(x: torch.Tensor, idx: torch.Tensor, experts: int, recipe: str) -> tuple[torch.Tensor, ...]:
    """`route`; in BF16 with x itself in place of quantized rows."""
    found = route(x, idx, experts, recipe)
    return (*found[:3], *unscaled(x)) if recipe == BF16 else found


def matrices(w: torch.Tensor, recipe: str, made: Sequence[Any] = (None, None), *, transposed: bool = False) -> Any:
    """Weights [E, N, K], or transposed [E, K, N], and their scales: in BF16 a view, else `made` or, if that is None, newly quantized."""
    if recipe == BF16:
        return unscaled(w.mT if transposed else w)
    return made if made[0] is not None else quantize_weights(w, transposed, recipe)


def forward_weights(w1: torch.Tensor, w2: torch.Tensor, made: Sequence[Any], recipe: str, gate_up: str) -> tuple[torch.Tensor, ...]:
    """W1 and W2 with scales for a forward pass, which takes `gate_up_words` of W1 in MXFP8."""
    (w1, w1_sf), (w2, w2_sf) = matrices(w1, recipe, made[:2]), matrices(w2, recipe, made[2:4])
    return w1, w1_sf if w1_sf.dtype != torch.int32 else gate_up_words(scale_bytes(w1_sf), gate_up), w2, w2_sf


Products = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Gradients of x, w1 and w2; None if not requested, or added to a total."""


def _packed_products(ctx: Any, found: RowGradients, x: torch.Tensor, dy: torch.Tensor, *others: torch.Tensor) -> Products:
    w1, w2, ends, sources, positions, *_ = others
    of_x, _, _, of_w1, of_w2 = ctx.needs_input_grad[:5]
    dx = token_gradients(*unscaled(found.rows), *unscaled(w1.mT), ends, positions) if of_x else None
    own, other = (found.rows, x, ends, sources, False), (found.weighted, dy, ends, sources, True)
    dw1 = of_weight(w1, ctx.totals[0], len(x), weight_gradients, *own) if of_w1 else None
    dw2 = of_weight(w2, ctx.totals[1], len(x), weight_gradients, *other) if of_w2 else None
    return dx, dw1, dw2


def _padded_products(ctx: Any, found: RowGradients, x: torch.Tensor, dy: torch.Tensor, *others: torch.Tensor) -> Products:
    """As `_packed_products`, in E4M3: experts' rows are padded to multiples of 128, the blocks that share a scale along columns."""
    w1, w2, ends, sources, positions, *made = others
    both = partial(quantized, recipe=ctx.recipe)
    of_x, _, _, of_w1, of_w2 = ctx.needs_input_grad[:5]
    padded = padded_rows(ends, len(sources))
    tokens = numbers_of(padded.sources, sources)
    dx = dw1 = dw2 = None
    if of_x or of_w1:
        dh = both(found.rows, padded.sources, of_x)
    if of_x:
        turned = matrices(w1, ctx.recipe, made, transposed=True)
        dx = token_gradients(dh.codes, dh.scales, *turned, padded.ends, numbers_of(positions, padded.places))
    if of_w1:
        dw1 = of_weight(w1, ctx.totals[0], len(x), _add_columns, dh, both(x, tokens, False), padded.ends)
    if of_w2:
        sides = both(dy, tokens, False), both(found.weighted, padded.sources, False)
        dw2 = of_weight(w2, ctx.totals[1], len(x), _add_columns, *sides, padded.ends)
    return dx, dw1, dw2


def of_weight(weight: torch.Tensor, total: torch.Tensor | None, rows: int, add: Callable[..., None], *operands: Any) -> torch.Tensor | None:
    """The gradient of a linear's weights over `rows` rows, written by `add(gradient, *operands)`; None if added to `total`."""
    gradient = total if total is not None else torch.empty_like(weight) if rows else torch.zeros_like(weight)
    if rows:
        add(gradient, *operands)
    return gradient if total is None else None


def _add_columns(into: torch.Tensor, left: QuantizedBoth, right: QuantizedBoth, ends: torch.Tensor) -> None:
    """Adds products of columns in E4M3."""
    add_columns(into, left.codes_t, left.scales_t, right.codes_t, right.scales_t, ends)


def define_training(forward: Any) -> Any:
    """The operator of `forward`, which returns y and `kept_between_passes`."""
    tensors = "Tensor x, Tensor topk_idx, Tensor topk_weights, Tensor w1, Tensor w2, Tensor? w1_total, Tensor? w2_total"
    made = ", ".join(f"Tensor? made_{number}" for number in range(MADE))
    schema = f"({tensors}, {made}, bool recompute, str gate_up, str activation, str recipe) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"

    def fake(x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, w1: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
        return torch.empty_like(x), *kept_between_passes(x, idx, w1, others[-4], others[-1])

    class Training(torch.autograd.Function):
        """Both passes without the operator, which takes the host longer than a launch."""

        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            output = forward(*given)
            _keep(ctx, given, output)
            return output

        backward = staticmethod(_backward)

    operator = differentiate(define("moe_training", schema, forward, fake), _backward, _keep)
    return lambda *given: (Training.apply if is_plain_call(given[0], traces=True) else operator)(*given)
