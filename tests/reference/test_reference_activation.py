"""Activations against scalar float32 arithmetic written out step by step."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from megamoe_dsl import reference
from megamoe_dsl.problem import Problem
from megamoe_dsl.reference.activation import gated, linear

F32 = np.float32
LOG2_E = 1.4426950408889634
LAYER = Problem(256, 128, 1, 1)


def bf16(x: float) -> np.float32:
    """Round a float32 to BF16, ties to even, by its bits."""
    bits = int(F32(x).view(np.uint32))
    return np.array((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000, dtype=np.uint32).view(F32)[()]


def tanh_limited(x: np.float32, limit: float) -> np.float32:
    return F32(limit * math.tanh(float(x) / limit))


def scalar(problem: Problem, gate: float, up: float, weight: float) -> np.float32:
    """One value.  gpt-oss: clamped, gate * sigmoid(1.702 gate) * (up + 1).  Kimi-K3: 4 tanh(gate / 4) sigmoid(gate) * 25 tanh(up / 25)."""
    g, u = bf16(gate), bf16(up)
    if problem.activation_clamp is not None:
        limit = bf16(problem.activation_clamp)
        g, u = min(g, limit), min(max(u, -limit), limit)
    slope, value = (1.702 if problem.activation == "swigluoai" else 1.0), g
    if problem.activation == "situ":
        value, u = tanh_limited(g, 4.0), tanh_limited(u, 25.0)
    elif problem.activation == "swigluoai":
        u = F32(u + F32(1))
    with np.errstate(over="ignore", divide="ignore"):
        if problem.fast_math:
            e = F32(np.exp2(np.float64(F32(g * F32(-slope * LOG2_E)))))
            r = F32(1.0 / np.float64(F32(1) + e))
            s = F32(value * (r if r >= F32(2.0**-126) else F32(0)))
        else:
            s = F32(value / (F32(1) + F32(np.exp(-slope * np.float64(g)))))
    return F32(F32(s * u) * F32(weight))


@pytest.mark.parametrize("fast_math", [True, False])
@pytest.mark.parametrize(
    ("activation", "clamp"), [("silu", None), ("silu", 10.0), ("silu", 0.3), ("swigluoai", None), ("swigluoai", 3.0), ("situ", None)]
)
def test_step_by_step(activation, clamp, fast_math):
    problem = dataclasses.replace(LAYER, activation=activation, activation_clamp=clamp, fast_math=fast_math)
    generator = torch.Generator().manual_seed(3)
    gate = torch.randn(4, 64, generator=generator) * torch.tensor([1.0, 20.0, 80.0, 0.01])[:, None]
    gate[2, :6] = torch.tensor([-87.5, -88.0, -100.0, -500.0, 0.0, 300.0])
    up = torch.randn(4, 64, generator=generator) * 12
    weight = torch.rand(4, generator=generator)
    got = reference.activate(problem, torch.cat([gate, up], dim=1), weight)
    want = [
        [scalar(problem, *pair, w) for pair in zip(*rows, strict=True)]
        for *rows, w in zip(gate.numpy(), up.numpy(), weight.numpy(), strict=True)
    ]
    assert np.array_equal(got.numpy().view(np.uint32), np.array(want, dtype=F32).view(np.uint32))


@pytest.mark.parametrize("activation", ["silu", "swigluoai", "situ"])
def test_exact_values_and_slopes(activation):
    """`gated` and `linear` are what `activate` rounds; their slopes are what the error bound takes them for."""
    problem = dataclasses.replace(LAYER, activation=activation)
    gate, up = (torch.linspace(-6, 6, 385, dtype=torch.float64).bfloat16().double() for _ in range(2))
    got = reference.activate(problem, torch.cat([gate, up])[None].float(), torch.ones(1))[0].double()
    want = gated(problem.activates, gate) * linear(problem.activates, up)
    assert bool(((got - want).abs() <= 2.0**-20 * want.abs()).all())
    fine = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    assert 0.9 < float(gated(problem.activates, fine).diff().abs().max() / (fine[1] - fine[0])) < 1.1
    assert float(linear(problem.activates, fine).diff().abs().max() / (fine[1] - fine[0])) < 1 + 1e-6


def test_extremes_are_finite():
    gate_up = torch.tensor([[-3e38, 3e38, 0.0, 1.0, 1.0, 5.0]])
    assert reference.activate(LAYER, gate_up, torch.ones(1)).abs().tolist() == [[0.0, float(torch.tensor(3e38).bfloat16()), 0.0]]
    assert reference.activate(dataclasses.replace(LAYER, fast_math=False), gate_up, torch.ones(1))[0, 0] == 0
    assert reference.activate(dataclasses.replace(LAYER, activation="situ"), gate_up, torch.ones(1)).isfinite().all()


def test_wrong_tensors_are_named():
    for wrong in (torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 5), torch.zeros(1, 1, 4)):
        with pytest.raises(
            ValueError, match=rf"gate_up: {wrong.dtype} \({str(tuple(wrong.shape))[1:-1]}\), allowed: torch.float32 \(n, 2I\)"
        ):
            reference.activate(LAYER, wrong, None)
    with pytest.raises(ValueError, match=r"weight: torch.float32 \(2,\), allowed: torch.float32 \(1,\)"):
        reference.activate(LAYER, torch.zeros(1, 4), torch.ones(2))
