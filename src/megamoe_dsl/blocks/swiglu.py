"""The activation between the two linears, in registers (activation.py, article 4.5.4.5)."""

from __future__ import annotations

from typing import Any

from cutlass import Float32

from ..activation import Activation, GatedProduct
from ..device import cast
from ..device.cast import soft_limit


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
