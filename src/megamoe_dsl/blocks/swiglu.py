"""The activation between the two linears, in registers (activation.py, article 4.5.4.5)."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32

from ..activation import Activation, GatedProduct
from ..device import cast
from ..device.cast import bf16_value, fast_sigmoid, soft_limit


def activate(ctx: Any, gate: tuple[Any, Any], up: tuple[Any, Any], weights: tuple[Any, Any]) -> list[Any]:
    """Activated gate * up * weight for two tokens of one channel, as the problem of `ctx.config` says; gate and up rounded to BF16 and
    clamped first.  No weight where combine applies that."""
    return activate_bf16(ctx, cast.pack_bf16(*gate), cast.pack_bf16(*up), weights)


def activate_bf16(ctx: Any, gate_pair: Any, up_pair: Any, weights: tuple[Any, Any]) -> list[Any]:
    """The same of two BF16 in a word each."""
    form: GatedProduct = ctx.config.problem.product
    if form.clamp is not None:
        gate_pair = cast.clamp_above_bf16(gate_pair, form.clamp)
        up_pair = cast.clamp_below_bf16(cast.clamp_above_bf16(up_pair, form.clamp), -form.clamp)
    pairs = zip(cast.unpack_bf16(gate_pair), cast.unpack_bf16(up_pair), weights, strict=True)
    return [product(form, g, u, w) for g, u, w in pairs]


def product(form: GatedProduct, gate: Any, up: Any, weight: Any) -> Any:
    """The activated product of one gate and one up value, times the top-k weight."""
    value = gated(form.activation, gate, form.fast_math) * linear(form.activation, up)
    return value * weight if form.weighed else value


def gated(form: Activation, gate: Any, fast: bool) -> Any:
    """What becomes of a gate."""
    value = gate if form.gate_limit is None else soft_limit(gate, form.gate_limit)
    return cast.times_sigmoid(value, gate, form.slope, fast)


def linear(form: Activation, up: Any) -> Any:
    """What it is multiplied with."""
    value = up if form.up_limit is None else soft_limit(up, form.up_limit)
    return value + Float32(form.up_offset) if form.up_offset else value


def gradients(form: GatedProduct, gate: Any, up: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """The activated product of a gate and an up, BF16 values, and the gradients of both from the product's; a clamped value has none.
    `reference.activation.activation_gradient` has the formulas, every operation rounded; the sigmoid is the fast one."""
    one, kept = form.activation, None
    if form.clamp is not None:
        limit = Float32(bf16_value(form.clamp))
        kept = gate <= limit, (up <= limit) & (up >= -limit)
        gate, up = cutlass.min(gate, limit), cutlass.max(cutlass.min(up, limit), -limit)
    s = fast_sigmoid(gate, one.slope)
    value, value_slope = limited(gate, one.gate_limit)
    factor, factor_slope = limited(up, one.up_limit)
    factor = factor + Float32(one.up_offset) if one.up_offset else factor
    activated = value * s
    of_gate = ((Float32(one.slope) * value) * (Float32(1.0) - s) + value_slope) * s * factor * gradient
    of_up = activated * factor_slope * gradient
    if kept is not None:
        of_gate, of_up = (Float32(cutlass.select_(there, found, Float32(0.0))) for there, found in zip(kept, (of_gate, of_up), strict=True))
    return activated * factor, of_gate, of_up


def limited(x: Any, limit: float | None) -> tuple[Any, Any]:
    """limit * tanh(x / limit), or x as it is, and its derivative."""
    if limit is None:
        return x, Float32(1.0)
    value = soft_limit(x, limit)
    part = value * Float32(1.0 / limit)
    return value, Float32(1.0) - part * part
