"""Arithmetic of the compiled SM90 kernel: random data to the bit, clamp, both SiLU formulas, and that a wrong scale or input shows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from mega_moe_runs import Layer, inputs, lowest_gate
from sm90_runs import config, hopper_case, problem, prove

from megamoe_dsl.cases import Case
from megamoe_dsl.runtime.simulated import compare
from sweep import rarely, sample


@sample("128-0")
@pytest.mark.parametrize("seed", [0, rarely(1)])
@pytest.mark.parametrize("block_m", [8, 32, 128])
def test_random_data_to_the_bit(block_m, seed):
    """Normal data over many binades: the reference with Hopper's partial sums, element by element; exact sums are another result."""
    moe = problem(20, hidden=512, num_experts=4, intermediate=384, activation_clamp=10.0)
    layer = prove(config(moe, block_m=block_m), [(20, 11)], seed=seed, exact=False, mask=0.1)
    case = hopper_case(moe, (20, 11), seed, exact=False, mask=0.1)
    exact = case.reference(torch.float64)
    assert not torch.equal(exact.y[0], case.reference().y[0])
    assert layer.moe.problem.activation_clamp == 10.0


@pytest.mark.sweep
@pytest.mark.parametrize("exact", [True, False])
def test_other_combinations_of_clamp_and_silu(exact):
    for block_m, clamp, fast_math in ((16, 0.5, True), (128, 7.0, False), (32, None, False)):
        kernel = config(problem(10, activation_clamp=clamp, fast_math=fast_math), block_m=block_m)
        layer = prove(kernel, [(10, 4)], exact=exact)
        assert ("div.rn.f32" in layer.moe.artifact.ptx) == (not fast_math)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [8, 128])
def test_exact_silu_of_gates_far_below_zero(block_m):
    """As of SM100: no NaN where exp(-gate) is infinite."""
    moe = problem(3, num_experts=4, activation_clamp=10.0, fast_math=False)
    case = hopper_case(moe, (3, 2), 0, exact=False)
    case = dataclasses.replace(case, x_sf=[scales * 256 for scales in case.x_sf])
    assert lowest_gate(case) < -89
    Layer.of(config(moe, block_m=block_m), case).check(case)


def test_exact_data_is_exact_with_any_sums():
    case = hopper_case(problem(10, hidden=512), (10, 4), 3)
    for a, b in zip(case.reference().y, case.reference(torch.float64).y, strict=True):
        assert torch.equal(a, b)


@pytest.mark.sweep
def test_a_wrong_weight_scale_is_noticed():
    """The scale of the last K block and 128 rows of the busiest expert, an ulp of BF16 off."""
    moe = problem(12, hidden=512, num_experts=4)
    case = hopper_case(moe, (12, 7), 3, exact=False)
    layer = Layer.of(config(moe), case)
    layer.check(case)
    want = case.reference().y
    # The kernel's memory is the case's: from here on the reference would change with it.
    busiest = int(layer.moe.ranks[0].stats.argmax())
    for name in ("fc1_sf", "fc2_sf"):
        scale = getattr(layer.moe.ranks[0].weights, name)[busiest, -1, -1]
        right = scale.clone()
        scale *= 1 + 2.0**-7
        y, report = layer.moe(inputs(case))
        assert report.findings == []
        assert not all(torch.equal(a, b) for a, b in zip(y, want, strict=True))
        scale.copy_(right)


@pytest.mark.parametrize("field", ["x", "x_sf", "topk_weights", "topk_idx"])
def test_a_wrong_input_is_noticed(field):
    """Exact data, one element changed on the way in: its rank's y differs, the other's does not."""
    moe = problem(8)
    case: Case = hopper_case(moe, (8, 5), 1)
    layer = Layer.of(config(moe), case)
    given = inputs(case)
    changed = getattr(given[1], field).clone()
    if field == "x":
        changed.view(torch.uint8)[2, 3] ^= 4
    elif field == "topk_idx":
        changed[2, 0] = -1
    elif field == "topk_weights":
        changed[2, 1] *= 1.5
    else:
        changed[2, 1] *= 2
    y, report = layer.moe([given[0], dataclasses.replace(given[1], **{field: changed})])
    assert report.findings == []
    zero, one = compare(case, y)
    assert zero.violations == 0 and one.violations > 0
