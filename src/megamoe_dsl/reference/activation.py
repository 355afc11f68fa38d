"""What Linear1's sums become before they are quantized: gate and up, activated, times the top-k weight."""

import torch

from megamoe_dsl.activation import Activation
from megamoe_dsl.problem import Problem

_LOG2_E = 1.4426950408889634
_SMALLEST_NORMAL = 2.0**-126


def limited(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    """limit * tanh(x / limit) in float64, or x as it is."""
    return x if limit is None else limit * (x.double() / limit).tanh()


def gated(form: Activation, gate: torch.Tensor) -> torch.Tensor:
    """What becomes of a gate, exactly: float64 of any shape."""
    return limited(gate, form.gate_limit) * (form.slope * gate).sigmoid()


def linear(form: Activation, up: torch.Tensor) -> torch.Tensor:
    """What it is multiplied with, exactly: float64 of any shape."""
    return limited(up, form.up_limit) + form.up_offset


def activate(problem: Problem, gate_up: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Activated gate * up * weight as the Linear1 epilogue computes it, float32 [n, I]: with `silu`, silu(gate) * up * weight.

    `gate_up` is float32 [n, 2I], columns [gate | up], of any I; `weight` is float32 [n], the top-k weight of each row, or None where
    combine applies it.

    gate and up are rounded to BF16, then clamped in BF16 by BF16(activation_clamp): gate from above, up on both sides. In FP32, each step
    rounded: v = gate, or gate limited by tanh; with `fast_math`, e = exp2(gate * float32(-slope * log2 e)), s = v * (1 / (1 + e)), a
    subnormal reciprocal flushed to zero; without it, e = exp(-slope * gate), s = v / (1 + e). u = up, or up limited by tanh, plus the
    offset. Result (s * u) * weight.

    Exponential, reciprocal and tanh are correctly rounded here; `ex2.approx` and `rcp.approx` may be 2 ulp off, which
    `bounds.error_bound` allows for and which exact cases are chosen to survive.  Raises ValueError on another dtype or shape.
    """
    if gate_up.dtype != torch.float32 or gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: {gate_up.dtype} {tuple(gate_up.shape)}, allowed: torch.float32 (n, 2I)")
    if weight is not None and (weight.dtype != torch.float32 or tuple(weight.shape) != (gate_up.shape[0],)):
        raise ValueError(f"weight: {weight.dtype} {tuple(weight.shape)}, allowed: torch.float32 ({gate_up.shape[0]},)")
    form, clamp = problem.activates, problem.activation_clamp
    gate, up = gate_up.to(torch.bfloat16).chunk(2, dim=1)
    if clamp is not None:
        limit = torch.tensor(clamp, device=gate.device).to(torch.bfloat16)
        gate, up = gate.minimum(limit), up.maximum(-limit).minimum(limit)
    gate, up = gate.float(), up.float()
    value = limited(gate, form.gate_limit).float()
    # Through float64: torch's float32 exp and exp2 are not correctly rounded on every CPU.
    if problem.fast_math:
        rate = torch.tensor(-form.slope * _LOG2_E, dtype=torch.float32, device=gate.device)
        power = (gate * rate).double().exp2().float()
        reciprocal = (1.0 + power).double().reciprocal().float()
        value = value * torch.where(reciprocal < _SMALLEST_NORMAL, 0.0, reciprocal)
    else:
        value = value / (1.0 + (-form.slope * gate.double()).exp().float())
    factor = limited(up, form.up_limit).float() + form.up_offset
    product = value * factor
    return product if weight is None else product * weight.unsqueeze(1)
