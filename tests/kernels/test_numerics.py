"""Arithmetic of the compiled kernel: clamp, both SiLU formulas, random data within the stated bound, and that the bound means something."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from mega_moe_runs import Layer, config, inputs, lowest_gate, problem, prove, received

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.runtime.simulated import compare
from sweep import rarely, sample


@pytest.mark.parametrize("clamp", [0.5, rarely(7.0)])
def test_activation_clamp(clamp):
    """BF16 clamps of gate and up, exact; the data reaches the limits, so the result differs from the one without clamp."""
    moe = problem(14, activation_clamp=clamp, hidden=512)
    layer = prove(config(moe), [(14, 6), (3, 9)])
    case = random_case(moe, (14, 6), 0)
    free = dataclasses.replace(case, problem=dataclasses.replace(moe, activation_clamp=None))
    assert not torch.equal(case.reference().y[0], free.reference().y[0])
    assert layer.moe.problem.activation_clamp == clamp


@pytest.mark.sweep
def test_clamp_with_the_exact_silu():
    prove(config(problem(10, activation_clamp=2.0, fast_math=False)), [(10, 4)])


@pytest.mark.sweep
def test_exact_silu():
    """fast_math False takes another code path: no reciprocal approximation, a division."""
    kernel = config(problem(14, fast_math=False, hidden=512))
    layer = prove(kernel, [(14, 6), (5, 5)])
    assert "div.rn.f32" in layer.moe.artifact.ptx and "rcp.approx" not in layer.moe.artifact.ptx


@pytest.mark.sweep
def test_exact_silu_of_gates_far_below_zero():
    """exp(-gate) is infinite in FP32: the gate counts as zero, and makes no NaN."""
    moe = problem(3, num_experts=4, activation_clamp=10.0, fast_math=False)
    case = random_case(moe, (3, 2), 0, exact=False)
    case = dataclasses.replace(case, x_sf=[scales + 6 for scales in case.x_sf])
    assert lowest_gate(case) < -89
    Layer.of(config(moe), case).check(case)


def random_layer(fast_math: bool = True) -> tuple[Layer, Case]:
    moe = problem(20, hidden=512, intermediate=512, fast_math=fast_math, activation_clamp=10.0)
    case = random_case(moe, (20, 11), 3, exact=False, mask=0.1)
    return Layer.of(config(moe), case), case


@sample("True")
@pytest.mark.parametrize("fast_math", [True, False])
def test_random_data_within_the_bound(fast_math):
    """Normal data over many binades: every element within `reference.error_bound`, which is a small part of y."""
    layer, case = random_layer(fast_math)
    ranks = layer.check(case)
    assert all(one.worst <= 1.0 for one in ranks)
    for y, bound in zip(case.reference().y, case.bound(), strict=True):
        assert bool((bound >= 0).all())
        assert float(bound.median()) < 0.05 * float(y.double().abs().median())


def busiest_scale(layer: Layer, case: Case, name: str) -> torch.Tensor:
    """One weight scale of the busiest local expert of rank 0: of 32 weights of one row."""
    counts = received(case)[0]
    scales = getattr(layer.moe.ranks[0].weights, name).view(torch.uint8).view(len(counts), -1)
    return scales[counts.index(max(counts)), 4]


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["fc1_sf", "fc2_sf"])
def test_a_wrong_weight_scale_violates_the_bound(name):
    """One byte of 32 weights in the kernel's memory, a factor of two off: the comparison says so on random data, within whose bound the
    kernel is otherwise (`test_random_data_within_the_bound`)."""
    layer, case = random_layer()
    busiest_scale(layer, case, name).add_(1)
    y, report = layer.moe(inputs(case))
    assert report.findings == []
    assert sum(one.violations for one in compare(case, y)) > 0


@pytest.mark.parametrize("field", ["x", "x_sf", "topk_weights", "topk_idx"])
def test_a_wrong_input_is_noticed(field):
    """A kernel that read one input element wrong would not pass: exact data, one element changed on the way in."""
    moe = problem(8)
    case = random_case(moe, (8, 5), 1)
    layer = Layer.of(config(moe), case)
    given = inputs(case)
    changed = getattr(given[1], field).clone()
    raw = changed.view(torch.uint8) if field == "x" else changed
    if field == "topk_idx":
        raw[2, 0] = -1
    elif field == "topk_weights":
        raw[2, 1] *= 1.5
    else:
        raw[2, 3] ^= 4
    y, report = layer.moe([given[0], dataclasses.replace(given[1], **{field: changed})])
    assert report.findings == []
    zero, one = compare(case, y)
    assert zero.violations == 0 and one.violations > 0
