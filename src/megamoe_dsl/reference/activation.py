"""What Linear1's sums become before they are quantized: gate and up, activated, times the top-k weight."""

import torch

from megamoe_dsl.activation import Activation
from megamoe_dsl.problem import ActivatingProblem

_LOG2_E = 1.4426950408889634
_SMALLEST_NORMAL = 2.0**-126


def limited(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    """limit * tanh(x / limit) in float64, or x as it is."""
    return x if limit is None else limit * (x.double() / limit).tanh()


def gated(form: Activation, gate: torch.Tensor) -> torch.Tensor:
    """The gate's part of the product, limited gate * sigmoid(slope * gate): exact, float64 of any shape."""
    return limited(gate, form.gate_limit) * (form.slope * gate).sigmoid()


def linear(form: Activation, up: torch.Tensor) -> torch.Tensor:
    """Up's part of the product, limited up + offset: exact, float64 of any shape."""
    return limited(up, form.up_limit) + form.up_offset


def fast_sigmoid(form: Activation, gate: torch.Tensor) -> torch.Tensor:
    """sigmoid(slope * gate) of float32 gates as `fast_math` computes it: every step rounded to FP32, a subnormal result flushed to zero."""
    rate = torch.tensor(-form.slope * _LOG2_E, dtype=torch.float32, device=gate.device)
    power = (gate * rate).double().exp2().float()
    reciprocal = (1.0 + power).double().reciprocal().float()
    return torch.where(reciprocal < _SMALLEST_NORMAL, 0.0, reciprocal)


def activation_gradient(
    form: Activation, clamp: float | None, gate_up: torch.Tensor, gradient: torch.Tensor, fast_math: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The activated product, [n, I], and the gradients of gate and up, [n, 2I], from the product's gradient, [n, I].

    gate_up is [n, 2I], columns [gate | up], as stored: BF16 values in float32, or any in float64.  Every operation is rounded; the sigmoid
    s is `fast_sigmoid`'s with `fast_math`, else torch's.  v = limited gate, u = limited up + offset:
    product v * s * u; of gate (slope * v * (1 - s) + v') * s * u * gradient; of up v * s * u' * gradient.  A clamped value's gradient is 0.
    """
    gate, up = (half.clone() for half in gate_up.chunk(2, dim=1))
    kept = torch.ones_like(gate, dtype=torch.bool), torch.ones_like(up, dtype=torch.bool)
    if clamp is not None:
        limit = float(gate.new_tensor(clamp).bfloat16()) if gate.dtype == torch.float32 else clamp
        kept = gate <= limit, up.abs() <= limit
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    s = fast_sigmoid(form, gate) if fast_math else (form.slope * gate).sigmoid()
    value, factor = (limited(one, limit).to(gate.dtype) for one, limit in ((gate, form.gate_limit), (up, form.up_limit)))
    factor = factor + form.up_offset
    value_slope, factor_slope = _limited_slope(gate, form.gate_limit), _limited_slope(up, form.up_limit)
    activated = value * s
    of_gate = ((form.slope * value) * (1.0 - s) + value_slope) * s * factor * gradient
    of_up = activated * factor_slope * gradient
    return activated * factor, torch.cat([of_gate.where(kept[0], 0.0), of_up.where(kept[1], 0.0)], dim=1)


def _limited_slope(x: torch.Tensor, limit: float | None) -> torch.Tensor | float:
    """The derivative of `limited`: 1 - tanh(x / limit)^2."""
    return 1.0 if limit is None else (1.0 - (x.double() / limit).tanh().square()).to(x.dtype)


def activate(problem: ActivatingProblem, gate_up: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Activated gate * up * weight as the Linear1 epilogue computes it, float32 [n, I]: with `silu`, silu(gate) * up * weight.

    `gate_up` is float32 [n, 2I], columns [gate | up], of any I; `weight` is float32 [n], the top-k weight of each row, or None where
    combine applies it.

    gate and up are rounded to BF16, then clamped in BF16: gate from above, up on both sides.  In FP32, each step rounded: v = gate, or gate
    limited by tanh; with `fast_math` s = v * `fast_sigmoid`, without it s = v / (1 + exp(-slope * gate)); u = up, or up limited by tanh,
    plus the offset.  Result (s * u) * weight.

    Exponential, reciprocal and tanh are correctly rounded here, of kernels approximate.  Raises ValueError on another dtype or shape.
    """
    if gate_up.dtype != torch.float32 or gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: {gate_up.dtype} {tuple(gate_up.shape)}, allowed: torch.float32 (n, 2I)")
    if weight is not None and (weight.dtype != torch.float32 or tuple(weight.shape) != (gate_up.shape[0],)):
        raise ValueError(f"weight: {weight.dtype} {tuple(weight.shape)}, allowed: torch.float32 ({gate_up.shape[0]},)")
    form, clamp = problem.activates, problem.product.clamp
    gate, up = gate_up.to(torch.bfloat16).chunk(2, dim=1)
    if clamp is not None:
        limit = torch.tensor(clamp, device=gate.device).to(torch.bfloat16)
        gate, up = gate.minimum(limit), up.maximum(-limit).minimum(limit)
    gate, up = gate.float(), up.float()
    value = limited(gate, form.gate_limit).float()
    # Through float64: torch's float32 exp and exp2 are not correctly rounded on every CPU.
    exact = 1.0 + (-form.slope * gate.double()).exp().float()
    value = value * fast_sigmoid(form, gate) if problem.fast_math else value / exact
    factor = limited(up, form.up_limit).float() + form.up_offset
    product = value * factor
    return product if weight is None else product * weight.unsqueeze(1)
