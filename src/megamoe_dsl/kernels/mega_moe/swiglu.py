"""The activation between the two linears, in registers (article 4.5.4.5)."""

from __future__ import annotations

from typing import Any

from ...device import cast
from .context import Context


def activate(ctx: Context, gate: tuple[Any, Any], up: tuple[Any, Any], weights: tuple[Any, Any]) -> list[Any]:
    """silu(gate) * up * weight for two tokens of one channel; gate and up rounded to BF16 and clamped first."""
    return activate_bf16(ctx, cast.pack_bf16(*gate), cast.pack_bf16(*up), weights)


def activate_bf16(ctx: Context, gate_pair: Any, up_pair: Any, weights: tuple[Any, Any]) -> list[Any]:
    """The same of two BF16 in a word each."""
    problem = ctx.config.problem
    if problem.activation_clamp is not None:
        gate_pair = cast.clamp_above_bf16(gate_pair, problem.activation_clamp)
        up_pair = cast.clamp_below_bf16(cast.clamp_above_bf16(up_pair, problem.activation_clamp), -problem.activation_clamp)
    pairs = zip(cast.unpack_bf16(gate_pair), cast.unpack_bf16(up_pair), weights, strict=True)
    return [cast.silu(g, problem.fast_math) * u * w for g, u, w in pairs]
