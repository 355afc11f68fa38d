"""The whole layer: against independent code, exact cases, and the error bound."""

import dataclasses
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch

from megamoe_dsl import quant, reference
from megamoe_dsl.arch import SM100
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.reference import bounds, moe, stages
from violations import violations

torch.set_num_threads(1)

SMALL = Problem(hidden=256, intermediate=128, num_experts=8, topk=3, num_ranks=2, max_tokens_per_rank=64)
MEDIUM = Problem(hidden=1024, intermediate=512, num_experts=4, topk=2, num_ranks=2, max_tokens_per_rank=64)


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in zip(left, right, strict=True))


def dense_moe(case: Case) -> list[torch.Tensor]:
    """The mathematical layer in float64: no rounding between the inputs and y."""
    p = case.problem
    result = []
    for rank in range(p.num_ranks):
        x = quant.dequantize_e4m3(case.x[rank], case.x_sf[rank])
        y = torch.zeros_like(x)
        for expert in range(p.num_experts):
            own, local = case.weights[expert // p.experts_per_rank], expert % p.experts_per_rank
            weight = ((case.topk_idx[rank] == expert) * case.topk_weights[rank].double()).sum(1, keepdim=True)
            gate, up = (x @ quant.dequantize_e2m1(own.fc1[local], own.fc1_sf[local]).T).chunk(2, dim=1)
            if p.activation_clamp is not None:
                gate, up = gate.clamp(max=p.activation_clamp), up.clamp(-p.activation_clamp, p.activation_clamp)
            y += weight * (torch.nn.functional.silu(gate) * up @ quant.dequantize_e2m1(own.fc2[local], own.fc2_sf[local]).T)
        result.append(y)
    return result


@pytest.mark.parametrize("clamp", [None, 1.5])
@pytest.mark.parametrize("mask", [0.0, 0.4])
def test_reference_is_near_the_dense_layer(clamp, mask):
    case = random_case(dataclasses.replace(MEDIUM, activation_clamp=clamp), [9, 14], seed=1, mask=mask, exact=False)
    y = torch.cat(case.reference().y).double()
    dense = torch.cat(dense_moe(case))
    # E4M3 rounds to a relative 2^-4 at most; its root mean square over a binade is about 0.026, BF16 adds 0.002.
    assert float((y - dense).norm() / dense.norm()) < 0.035


def test_one_slot_by_hand():
    """One token, one expert, plain numpy with a table search for E4M3."""
    problem = Problem(hidden=256, intermediate=128, num_experts=1, topk=1, max_tokens_per_rank=1)
    case = random_case(problem, [1], seed=5)
    grid = np.sort(quant.decode_e4m3(torch.arange(127, dtype=torch.uint8)).numpy())

    def values(codes: np.ndarray, sf: torch.Tensor) -> np.ndarray:
        return codes * np.repeat(2.0 ** (sf.numpy().astype(np.float64) - 127), 32, axis=-1)

    def bf16(x: np.ndarray) -> np.ndarray:
        return torch.from_numpy(x.astype(np.float32)).bfloat16().float().numpy()

    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    own = case.weights[0]
    fc1, fc2 = (np.stack([table[w[0].numpy() & 15], table[w[0].numpy() >> 4]], -1).reshape(w.shape[1], -1) for w in (own.fc1, own.fc2))
    acc = values(fc1, own.fc1_sf[0]) @ values(case.x[0].double().numpy()[0], case.x_sf[0][0])
    gate, up = bf16(acc[:128]), bf16(acc[128:])
    e = np.exp2((gate * np.float32(-1.4426950408889634)).astype(np.float64)).astype(np.float32)
    v = gate * (np.float32(1) / (np.float32(1) + e)) * up * case.topk_weights[0].numpy()[0]
    acts = []
    for block in v.reshape(4, 32):
        exponent = int(np.ceil(np.log2(np.abs(block).max() / 448)))
        scaled = block.astype(np.float64) * 2.0**-exponent
        nearest = grid[np.abs(np.abs(scaled)[:, None] - grid).argmin(axis=1)]  # the case holds no ties
        acts.append(np.sign(scaled) * nearest * 2.0**exponent)
    want = bf16(values(fc2, own.fc2_sf[0]) @ np.concatenate(acts))
    assert np.array_equal(case.reference().y[0].float().numpy()[0], want)


def tensor_core_sum(x, x_sf, w, w_sf, accumulate, parts=1):
    """Sums 32 products exactly, then truncates the running FP32 sum, as a tensor core may; blocks of K in descending order."""
    left, right = quant.dequantize_e4m3(x, x_sf), quant.dequantize_e2m1(w, w_sf)
    total = torch.zeros(left.shape[0], right.shape[0], dtype=torch.float64)
    for start in reversed(range(0, left.shape[1], 32)):
        total = total + left[:, start : start + 32] @ right[:, start : start + 32].T
        nearest = total.float()
        toward_zero = torch.nextafter(nearest, torch.zeros(()))
        total = torch.where(nearest.double().abs() > total.abs(), toward_zero, nearest).double()
    return total.float()


def noisy_sum(x, x_sf, w, w_sf, accumulate, parts=1):
    """Exact sums moved at random within the FP32 error that the probabilistic bound assumes."""
    left, right = quant.dequantize_e4m3(x, x_sf), quant.dequantize_e2m1(w, w_sf)
    total = left @ right.T
    size = torch.maximum((left.square() @ right.square().T).sqrt(), total.abs())
    noise = torch.rand(total.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    return (total + noise * left.shape[1] * 2.0**-24 * size * 0.99).float()


def rough_activate(problem, gate_up, weight):
    """The activation whose result is up to three FP32 ulp off."""
    exact = reference.activate(problem, gate_up, weight)
    off = torch.randint(-3, 4, exact.shape, generator=torch.Generator().manual_seed(0))
    return exact * (1 + off * 2.0**-23)


@pytest.fixture
def rough_kernel(monkeypatch):
    """Runs a case with other accumulation and other last bits, as a correct kernel would."""

    def run(case: Case, total=tensor_core_sum) -> reference.MoeResult:
        with monkeypatch.context() as patch:
            patch.setattr(stages, "scaled_matmul", total)
            patch.setattr(moe, "activate", rough_activate)
            return case.reference()

    return run


@pytest.mark.parametrize(
    ("problem", "tokens", "options"),
    [
        (SMALL, [13, 0], {}),
        (SMALL, [0, 0], {}),
        (SMALL, [64, 17], {"mask": 0.5, "skew": True}),
        (SMALL, [20, 20], {"target_expert": 5}),
        (dataclasses.replace(SMALL, activation_clamp=2.0), [20, 7], {"mask": 0.2}),
        (dataclasses.replace(MEDIUM, fast_math=False), [5, 30], {}),
        (Problem(7168, 256, 1, 1, 1, 64), [6], {}),
        (Problem(256, 3072, 1, 1, 1, 64), [24], {}),
    ],
)
def test_exact_cases_do_not_depend_on_accumulation(rough_kernel, problem, tokens, options):
    case = random_case(problem, tokens, seed=2, **options)
    result, rough = case.reference(), rough_kernel(case)
    assert same(result.y, rough.y) and same(result.acts, rough.acts) and same(result.acts_sf, rough.acts_sf)
    assert same(result.outputs, rough.outputs)
    assert [y.shape for y in result.y] == [(count, problem.hidden) for count in tokens]
    live = [idx >= 0 for idx in case.topk_idx]
    outputs = torch.cat([out.transpose(0, 1)[on] for out, on in zip(result.outputs, live, strict=True)])
    if len(outputs):
        # Not degenerate: outputs are nonzero, of all sizes, and the scales vary.
        assert float((outputs == 0).float().mean()) < 0.02
        assert len(torch.cat([sf[on] for sf, on in zip(result.acts_sf, live, strict=True)]).unique()) > 2
    for y, idx in zip(result.y, case.topk_idx, strict=True):
        assert not y[(idx < 0).all(dim=1)].any()


def test_both_math_modes_agree_on_exact_cases():
    case = random_case(SMALL, [30, 11], seed=8)
    accurate = dataclasses.replace(case, problem=dataclasses.replace(SMALL, fast_math=False))
    assert same(case.reference().y, accurate.reference().y)


def test_cases_are_reproducible_and_keep_their_promises():
    first, second = (random_case(SMALL, [40, 9], seed=4, mask=0.25, skew=True) for _ in range(2))
    assert same(first.topk_weights, second.topk_weights) and same([w.fc2 for w in first.weights], [w.fc2 for w in second.weights])
    idx = torch.cat(random_case(SMALL, [64, 64], seed=4, mask=0.25, exact=False).topk_idx)
    assert 0.15 < float((idx < 0).float().mean()) < 0.35
    counts = reference.route(SMALL, random_case(SMALL, [64, 64], seed=4, skew=True, exact=False).topk_idx).counts.sum(1)
    assert int(counts.max()) > 100
    counts = reference.route(SMALL, random_case(SMALL, [64, 64], seed=4, target_expert=2, exact=False).topk_idx).counts.sum(1)
    assert int(counts[2]) == 128


def test_result_does_not_depend_on_token_or_slot_placement():
    case = random_case(SMALL, [12, 12], seed=6, exact=False)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))

    def moved(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [t.view(torch.uint8)[order].view(t.dtype) if t.dtype == torch.float8_e4m3fn else t[order] for t in tensors]

    other = Case(SMALL, *(moved(t) for t in (case.x, case.x_sf, case.topk_idx, case.topk_weights)), case.weights, False)
    assert same(moved(case.reference().y), other.reference().y)


@pytest.mark.parametrize("combine", ["bf16", "e4m3"])
def test_error_bound_admits_a_correct_kernel(rough_kernel, combine):
    for seed, clamp in ((1, None), (2, 1.0)):
        layer = dataclasses.replace(MEDIUM, activation_clamp=clamp, combine=combine)
        case = random_case(layer, [20, 25], seed, mask=0.2, exact=False)
        result = case.reference()
        bound = case.bound()
        others = [rough_kernel(case), rough_kernel(case, noisy_sum), case.reference(torch.float32)]
        assert not same(others[1].acts, result.acts) and not same(others[1].y, result.y)
        for other in others:
            assert [len(v) for v in violations(other.y, result.y, bound)] == [0, 0]
        y, limit = torch.cat(result.y).double(), torch.cat(bound)
        assert float(limit.square().mean().sqrt() / y.square().mean().sqrt()) < 0.1


def test_sums_that_factors_and_biases_finish_are_rounded_twice_each():
    """A product and an addition of FP32 move a value by 2^-24 of itself, whatever its sign; with exact sums nothing moves."""
    operands = torch.ones(1, 1).bfloat16(), NO_SCALES, torch.tensor([[-3.0], [5.0]]).bfloat16(), NO_SCALES.expand(2, 0)
    factor, bias, unit = torch.tensor([[2.0]]), torch.tensor([1.0, -11.0]), 2.0**-24
    for exact in (False, True):
        whole, moved = bounds._linear_sums(operands, False, exact, torch.float64, factor, bias)
        rounded, own = (0, 0) if exact else (2 * unit, unit)
        assert whole.tolist() == [[-5.0, -1.0]]
        assert moved.tolist() == [[own * 6 + rounded * 6 + rounded * 5, own * 10 + rounded * 10 + rounded * 1]]
        plain = bounds._linear_sums(operands, False, exact, torch.float64)
        assert [one.tolist() for one in plain] == [[[-3.0, 5.0]], [[own * 3, own * 5]]]


@pytest.mark.parametrize(("sign", "largest"), [(1.0, 200.0), (-1.0, 200.0), (0.0, 200**0.5)])
def test_sums_have_an_error_of_their_size_or_of_their_products(sign, largest):
    """Of 200 products of 1, all of one sign or as many of both: by the tensor core alone, and with promotion, by two blocks of K."""
    left = torch.ones(1, 200, dtype=torch.float64)
    right = left * sign if sign else left.clone()
    if not sign:
        right[:, ::2] = -1
    total = left @ right.T
    assert bounds._sum_error(left, right, total).item() == pytest.approx(200 * 2**-24 * largest)
    assert bounds._sum_error(left, right, total, promoted=True).item() == pytest.approx((16 * 2**-13 + 4 * 2**-24) * largest, rel=1e-9)
    found, error = bounds.scaled_sums(left.bfloat16(), NO_SCALES, right.bfloat16(), NO_SCALES)
    assert found.item() == 200 * sign and error.item() == pytest.approx(200 * 2**-24 * largest)


NO_SCALES = torch.zeros(1, 0, dtype=torch.uint8)


def test_a_value_of_bf16_may_be_rounded_either_way():
    """From 1.25 the next values are 2^-7 away; half of that is rounded to the even one, 1.25."""
    values = torch.tensor([[0.0, 1.0, -1.0]]).double() * 2**-9 + 1.25
    for sign in (1, -1):
        ends = [bounds._clamped_ends(sign * values, torch.full_like(values, 2.0**-power), None, None) for power in (12, 9, 8, 7)]
        assert all(center.tolist() == [[sign * 1.25] * 3] for center, _ in ends)
        assert [found.tolist() for _, found in ends] == [[[0.0] * 3], [[0.0] * 3], [[0.0, 2**-7, 2**-7]], [[2**-7] * 3]]


def test_sums_are_exact_but_on_hopper():
    """Where its tensor core cuts 2^-30 off beside 1; of exact sums only rows that have moved have an error."""
    x, w = torch.zeros(2, 16).bfloat16(), torch.ones(1, 16).bfloat16()
    x[:, :2] = torch.tensor([[1.0, 2.0**-30], [2.0**-30, -1.0]])
    none, deviation = torch.zeros(2, 0, dtype=torch.uint8), torch.zeros(2, 16).double()
    deviation[1, 0] = 2.0**-60
    for accumulate, total in ((torch.float64, [[1 + 2**-30], [2**-30 - 1]]), ("hopper", [[1.0], [-1.0]])):
        for exact, share in ((False, [1.0, 1.0]), (True, [0.0, 1.0])):
            found, of_rows = bounds._linear_sums((x, none, w, none[:1]), False, exact, accumulate, deviation=deviation)
            assert found.tolist() == total
            assert of_rows.flatten().tolist() == pytest.approx([16 * 2**-24 * one for one in share], abs=1e-15)
    promoted = bounds._sum_error(x.double(), w.double(), torch.ones(2, 1).double(), promoted=True)
    assert promoted.flatten().tolist() == pytest.approx([2**-9 + 2**-23] * 2)


def test_the_slope_of_gate_is_no_larger_than_is_counted():
    gate = torch.linspace(-20, 20, 40_001, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.silu(gate).sum().backward()
    assert 1.09 < float(gate.grad.abs().max()) < bounds._GATE_SLOPE < 1.11


def test_the_bound_of_a_layer_whose_rows_are_an_odd_number_of_blocks():
    """Scales of Linear2 are those of whole blocks of 128 rows, also where these are three."""
    case = random_case(Problem(384, 128, 2, 1, recipe="fp8xfp8"), [3], 0, exact=False)
    (bound,) = case.bound()
    assert bound.shape == (3, 384) and bool((bound > 0).all()) and bool((bound < case.reference().y[0].abs().double().max()).all())


def faulty(case: Case, fault: str) -> list[torch.Tensor]:
    """The output of a kernel with one mistake."""
    if fault == "slots swapped":
        return dataclasses.replace(case, topk_weights=[w.flip(1) for w in case.topk_weights]).reference().y
    if fault == "tokens swapped":
        return [y.roll(1, 0) for y in case.reference().y]
    if fault == "weight twice":
        return dataclasses.replace(case, topk_weights=[w.square() for w in case.topk_weights]).reference().y
    if fault == "one slot lost":
        idx = [i.clone() for i in case.topk_idx]
        idx[0][3, 1] = -1
        return dataclasses.replace(case, topk_idx=idx).reference().y
    if fault == "one token scale":
        sf = [s.clone() for s in case.x_sf]
        sf[1][2, 5] += 1
        return dataclasses.replace(case, x_sf=sf).reference().y
    if fault == "gate and up swapped":
        return (
            dataclasses.replace(case, weights=[dataclasses.replace(w, fc1=w.fc1.roll(w.fc1.shape[1] // 2, 1)) for w in case.weights])
            .reference()
            .y
        )
    if fault == "a result's scale doubled":
        result = case.reference()
        outputs = [one.clone() for one in result.outputs]
        outputs[0][1, 3, 128:256] *= 2
        return [reference.combine(*one) for one in zip(outputs, case.topk_idx, strict=True)]
    assert fault == "scale rows in plain order"
    moved = [
        dataclasses.replace(w, fc2_sf=quant.utccp_scale_order(w.fc2_sf).view(torch.uint8).reshape(w.fc2_sf.shape)) for w in case.weights
    ]
    return dataclasses.replace(case, weights=moved).reference().y


FAULTS = [
    "slots swapped",
    "tokens swapped",
    "weight twice",
    "one slot lost",
    "one token scale",
    "gate and up swapped",
    "scale rows in plain order",
]


@cache
def bounded(exact: bool, combine: str = "bf16") -> tuple[Case, list[torch.Tensor], list[torch.Tensor]]:
    """A case, its result and its bound."""
    case = random_case(dataclasses.replace(MEDIUM, combine=combine), [9, 7], seed=3, exact=exact)
    return case, case.reference().y, case.bound()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("fault", ["slots swapped", "one slot lost", "a result's scale doubled"])
def test_wrong_results_that_travel_as_e4m3_leave_the_bound(fault, exact):
    case, y, bound = bounded(exact, "e4m3")
    found = violations(faulty(case, fault), y, bound)
    assert sum(len(v) for v in found) > 0


def test_results_that_travel_as_e4m3_are_near_the_others():
    """Each value is off by a sixteenth of itself or of its block's smallest normal code at most; sums of them by 2 to 3 % in the 2-norm."""
    case = random_case(MEDIUM, [40, 13], seed=4, exact=False)
    coded = dataclasses.replace(case, problem=dataclasses.replace(MEDIUM, combine="e4m3"))
    y, other = (torch.cat(one.reference().y).double() for one in (case, coded))
    assert 0.01 < float((y - other).norm() / y.norm()) < 0.04


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_results_leave_the_bound(fault, exact):
    case, y, bound = bounded(exact)
    found = violations(faulty(case, fault), y, bound)
    assert sum(len(v) for v in found) > 0


def test_quant_and_reference_do_not_import_cutlass():
    code = "import sys, megamoe_dsl.cases; sys.exit('cutlass' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_violations_report_place_and_nan():
    y = [torch.tensor([[1.0, float("nan")], [3.0, 4.0]])]
    want = [torch.tensor([[1.0, 2.0], [3.5, 4.0]])]
    found = violations(y, want, [torch.full((2, 2), 0.25, dtype=torch.float64)])
    assert found[0].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match=r"y\[0\]: shape \(1, 2\), allowed: \(2, 2\)"):
        violations([y[0][:1]], want, want)


@pytest.mark.parametrize("weigh_results", [False, True])
def test_rows_are_weighed_once(weigh_results):
    case = random_case(dataclasses.replace(SMALL, weigh_results=weigh_results), [5, 3], seed=4)
    for job in case.jobs(case.check()):
        assert (job.hidden_weight is None) == weigh_results and (weigh_results or job.hidden_weight is job.weight)


def test_an_expert_that_is_asked_for_is_in_every_row():
    for expert in (0, 5):
        case = random_case(SMALL, [9, 14], seed=2, target_expert=expert)
        assert all((idx == expert).any(dim=1).all() for idx in case.topk_idx)


def test_transformed_weights_describe_the_same_layer():
    case = random_case(MEDIUM, [3, 3], seed=9)
    back = [quant.inverse_transform_weights(MEDIUM, SM100, quant.transform_weights(MEDIUM, SM100, w)) for w in case.weights]
    assert same(case.reference().y, dataclasses.replace(case, weights=back).reference().y)


def test_input_errors_name_the_field():
    case = random_case(SMALL, [2, 2], seed=1, exact=False)
    for change, match in (
        ({"x": case.x[:1]}, r"len\(x\) = 1: must be num_ranks = 2"),
        ({"x_sf": [s[:, :-1] for s in case.x_sf]}, r"x_sf\[0\] = 'torch.uint8 \(2, 7\)': must be torch.uint8 \(2, 8\)"),
        ({"topk_weights": [w.double() for w in case.topk_weights]}, r"topk_weights\[0\] = 'torch.float64 \(2, 3\)'"),
        ({"weights": [dataclasses.replace(w, fc2=w.fc1) for w in case.weights]}, r"fc2.shape = "),
    ):
        with pytest.raises(ValueError, match=match):
            dataclasses.replace(case, **change).reference()
    typed = dataclasses.replace(case, x_sf=[one.view(torch.float8_e8m0fnu) for one in case.x_sf])
    assert same(typed.reference().y, case.reference().y)
    with pytest.raises(ProblemError, match=r"mask = 1\.5: must be between 0 and 1"):
        random_case(SMALL, [2, 2], seed=1, mask=1.5)
    with pytest.raises(ProblemError, match="target_expert = 8"):
        random_case(SMALL, [2, 2], seed=1, target_expert=8)
    with pytest.raises(ProblemError, match=r"tokens\[1\] = 65"):
        random_case(SMALL, [2, 65], seed=1)
