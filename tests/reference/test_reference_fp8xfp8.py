"""fp8xfp8: promotion against exact fractions, the tensor core against silicon, exact cases, bounds and faults."""

import base64
import dataclasses
import json
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from megamoe_dsl import quant, reference
from megamoe_dsl.arch import SM90
from megamoe_dsl.cases import Case, random_case, random_inputs, random_weights
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.reference import bounds, moe, stages
from sampled import sampled
from violations import violations

torch.set_num_threads(1)

SMALL = Problem(256, 128, 8, 3, 2, 64, recipe="fp8xfp8")
MEDIUM = Problem(1024, 512, 4, 2, 2, 64, recipe="fp8xfp8")
FP8 = torch.float8_e4m3fn


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in zip(left, right, strict=True))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def nearest_float32(value: Fraction) -> np.float32:
    """Correct rounding: the float64 is within half an ulp, ties go to the even neighbor."""
    guess = np.float32(float(value))
    near = [guess, np.nextafter(guess, np.float32(-np.inf)), np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint32)) & 1))


@pytest.mark.parametrize("seed", range(3))
def test_promotion_is_an_fma_per_128_of_k(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-15, 16, (3, 512), generator=generator).float().to(FP8)
    w = torch.randint(-15, 16, (256, 512), generator=generator).float().to(FP8)
    x_sf, w_sf = torch.rand(3, 4, generator=generator), torch.rand(2, 4, generator=generator)
    got = reference.promoted_matmul(x, x_sf, w, w_sf)
    partial = (x.double().unflatten(1, (4, 128)).transpose(0, 1) @ w.double().unflatten(1, (4, 128)).permute(1, 2, 0)).long()
    for token, row in ((0, 0), (1, 127), (2, 128), (2, 255), (0, 77)):
        total = np.float32(0)
        for k in range(4):
            scale = np.float32(x_sf[token, k].item()) * np.float32(w_sf[row // 128, k].item())
            total = nearest_float32(Fraction(int(partial[k, token, row])) * Fraction(float(scale)) + Fraction(float(total)))
        assert got[token, row].item() == total


@pytest.mark.parametrize("name", ["all codes", "below 2^-2"])
def test_tensor_core_model_has_the_bits_of_an_h200(name):
    data = json.loads((Path(__file__).parent / "data" / "wgmma_h200.json").read_text())[name]
    a, b = (torch.tensor(list(base64.b64decode(data[key])), dtype=torch.uint8).view(FP8).reshape(-1, 128) for key in ("a", "b"))
    want = torch.tensor(data["d"])
    assert torch.equal(reference.hopper_dot(a, b), want)
    assert float((a.double() @ b.double().T != want.double()).float().mean()) > 0.4  # the cut shows


def test_tensor_core_cuts_by_hand():
    def dot(*pairs: tuple[int, float, float]) -> float:
        a, b = torch.zeros(1, 64), torch.zeros(1, 64)
        for k, left, right in pairs:
            a[0, k], b[0, k] = left, right
        return reference.hopper_dot(a.to(FP8), b.to(FP8)).item()

    assert dot((0, 256, 16), (1, 0.5, 1)) == 4096.5  # 13 bits below 2^12
    assert dot((0, 256, 16), (1, 0.4375, 1)) == dot((0, 256, 16), (1, -0.4375, 1)) == 4096  # toward zero, either sign
    assert dot((0, 0.25, 1), (40, 256, 16)) == 4096  # the accumulator is cut as well
    assert dot((0, 256, 16), (1, 256, 16), (2, 0.5, 1)) == 8192  # the result keeps 14 bits
    assert dot((0, 1.875, 1.875), (1, 2.0**-6, 2.0**-6)) == 1.875**2 + 2.0**-12  # the exponent is 0 + 0, although 3.5 is above 2
    assert dot((0, 2.0**-9, 2.0**-9), (1, 448, 0)) == 2.0**-18  # a product with zero aligns nothing
    assert dot() == 0


@pytest.mark.parametrize(("dtype", "k"), [(FP8, 48), (torch.bfloat16, 8), (FP8, 0), (torch.bfloat16, 0)])
def test_the_last_instruction_is_filled_with_zeros(dtype, k):
    a, b = draw(3, k).to(dtype), draw(5, k, seed=1).to(dtype)
    filled = (torch.nn.functional.pad(one.float(), (0, 64 - k)).to(dtype) for one in (a, b))
    assert torch.equal(reference.hopper_dot(a, b), reference.hopper_dot(*filled))


def test_a_row_of_weights_may_have_scales_of_its_own():
    """Also where there is nothing to add."""
    codes, sf = quant.quantize_e4m3_f32(draw(130, 256))
    w, w_sf = quant.quantize_weight_e4m3(draw(130, 256))
    want = reference.promoted_matmul(codes, sf, w, w_sf)
    assert torch.equal(reference.promoted_matmul(codes, sf, w, quant.weight_scale_rows(w_sf, 130)), want)
    assert not reference.promoted_matmul(codes[:, :0], sf[:, :0], w[:, :0], sf[:, :0]).any()


def test_integers_and_single_products_pass_the_tensor_core_unharmed():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (20, 128), generator=generator).float() for _ in range(2))
    assert torch.equal(reference.hopper_dot(a, b), a @ b.T)
    one = torch.zeros(126, 32)
    one[:, 7] = torch.arange(1, 127, dtype=torch.uint8).view(FP8).float()
    assert torch.equal(reference.hopper_dot(one, one), one[:, 7:8] @ one[:, 7:8].T)


def dense_moe(case: Case) -> torch.Tensor:
    """The mathematical layer in float64: no rounding between the inputs and y."""
    p, result = case.problem, []
    for rank in range(p.num_ranks):
        x = quant.dequantize_e4m3_f32(case.x[rank], case.x_sf[rank])
        y = torch.zeros_like(x)
        for expert in range(p.num_experts):
            own, local = case.weights[expert // p.experts_per_rank], expert % p.experts_per_rank
            weight = ((case.topk_idx[rank] == expert) * case.topk_weights[rank].double()).sum(1, keepdim=True)
            gate, up = (x @ quant.dequantize_weight_e4m3(own.fc1[local], own.fc1_sf[local]).T).chunk(2, dim=1)
            y += weight * (torch.nn.functional.silu(gate) * up @ quant.dequantize_weight_e4m3(own.fc2[local], own.fc2_sf[local]).T)
        result.append(y)
    return torch.cat(result)


def test_reference_is_near_the_dense_layer():
    case = random_case(MEDIUM, [9, 14], seed=1, mask=0.2, exact=False)
    dense = dense_moe(case)
    for accumulate in (torch.float64, "hopper"):
        y = torch.cat(case.reference(accumulate).y).double()
        assert float((y - dense).norm() / dense.norm()) < 0.035  # E4M3 of the activations; the tensor core adds little to it


def rough_activate(problem, gate_up, weight):
    """The activation whose result is up to three FP32 ulp off."""
    exact = reference.activate(problem, gate_up, weight)
    off = torch.randint(-3, 4, exact.shape, generator=torch.Generator().manual_seed(0))
    return exact * (1 + off * 2.0**-23)


def backwards(x, x_sf, w, w_sf, accumulate, parts=1):
    """The blocks of K in descending order, tensor-core partial sums."""
    flipped = (t.view(torch.uint8).unflatten(1, (-1, 128)).flip(1).flatten(1).view(FP8) for t in (x, w))
    x, w = flipped
    return reference.promoted_matmul(x, x_sf.flip(1), w, w_sf.flip(1), "hopper")


@pytest.fixture
def rough_kernel(monkeypatch):
    """Runs a case with other last bits of SwiGLU and, when given, other sums."""

    def run(case: Case, total=None, accumulate="hopper") -> reference.MoeResult:
        with monkeypatch.context() as patch:
            patch.setattr(moe, "activate", rough_activate)
            if total is not None:
                patch.setattr(stages, "scaled_matmul", total)
            return case.reference(accumulate)

    return run


@pytest.mark.parametrize(
    ("problem", "tokens", "options"),
    [
        (SMALL, [13, 0], {}),
        (SMALL, [0, 0], {}),
        (SMALL, [30, 17], {"mask": 0.5, "skew": True}),
        (dataclasses.replace(SMALL, activation_clamp=2.0), [20, 7], {"target_expert": 5}),
        (dataclasses.replace(MEDIUM, fast_math=False), [5, 10], {}),
        (Problem(7168, 256, 1, 1, 1, 64, recipe="fp8xfp8"), [3], {}),
        (Problem(256, 3072, 1, 1, 1, 64, recipe="fp8xfp8"), [8], {}),
    ],
)
def test_exact_cases_do_not_depend_on_accumulation(rough_kernel, problem, tokens, options):
    case = random_case(problem, tokens, seed=2, **options)
    result = case.reference()
    for other in (case.reference(torch.float32), rough_kernel(case), rough_kernel(case, backwards)):
        assert all(same(getattr(result, name), getattr(other, name)) for name in ("y", "acts", "acts_sf", "outputs"))
    live = [idx >= 0 for idx in case.topk_idx]
    outputs = torch.cat([out.transpose(0, 1)[on] for out, on in zip(result.outputs, live, strict=True)])
    if len(outputs):
        assert float((outputs == 0).float().mean()) < 0.05
        assert len(torch.cat([sf[on] for sf, on in zip(result.acts_sf, live, strict=True)]).unique()) > 2
        assert len(torch.cat([sf.flatten() for sf in case.x_sf]).unique()) == 4
    # Few rows had to be thinned: one entry per 128 columns.
    entries = torch.cat([(w.fc2.double() != 0).sum(2).flatten() for w in case.weights]).double()
    assert float(entries.mean()) > 0.8 * problem.intermediate / 128


def test_both_math_modes_agree_on_exact_cases():
    case = random_case(SMALL, [30, 11], seed=8)
    accurate = dataclasses.replace(case, problem=dataclasses.replace(SMALL, fast_math=False))
    assert same(case.reference().y, accurate.reference().y)


def noisy_sum(x, x_sf, w, w_sf, accumulate, parts=1):
    """The reference's sums moved at random within the error that the probabilistic bound assumes."""
    total = reference.promoted_matmul(x, x_sf, w, w_sf).double()
    left, right = quant.dequantize_e4m3_f32(x, x_sf), quant.dequantize_weight_e4m3(w, w_sf)
    noise = torch.rand(total.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    return (total + noise * bounds._sum_error(left, right, total, promoted=True) * 0.99).float()


def test_error_bound_admits_a_correct_kernel(rough_kernel):
    case = random_case(dataclasses.replace(MEDIUM, activation_clamp=1.0), [14, 9], seed=2, mask=0.2, exact=False)
    result, bound = case.reference(), case.bound()
    others = [rough_kernel(case), rough_kernel(case, backwards), rough_kernel(case, noisy_sum), case.reference(torch.float32)]
    assert not same(others[0].y, result.y) and not same(others[0].acts, result.acts)
    for other in others:
        assert [len(v) for v in violations(other.y, result.y, bound)] == [0, 0]
    y, limit = torch.cat(result.y).double(), torch.cat(bound)
    assert float(limit.square().mean().sqrt() / y.square().mean().sqrt()) < 0.35


def test_a_hopper_kernel_is_held_to_its_own_partial_sums(rough_kernel):
    case = random_case(MEDIUM, [14, 9], seed=5, exact=False)
    result, kernel = case.reference("hopper"), rough_kernel(case)
    bound = reference.error_bound(case, sums_exact=True, accumulate="hopper")
    assert [len(v) for v in violations(kernel.y, result.y, bound)] == [0, 0]
    assert sum(len(v) for v in violations(case.reference().y, result.y, bound)) > 0  # exact sums are another result
    assert float(torch.cat(bound).square().mean().sqrt() / torch.cat(result.y).double().square().mean().sqrt()) < 0.02


@pytest.mark.parametrize("kind", ["normal", "one sign", "outliers"])
def test_the_error_of_sums_holds_for_hostile_operands(kind):
    x, w = draw(16, 256), draw(128, 256, seed=1)
    if kind == "one sign":
        x, w = x.abs(), w.abs()
    elif kind == "outliers":
        w[:, ::16] *= 100
    codes, sf = quant.quantize_e4m3_f32(x)
    w_codes, w_sf = quant.quantize_weight_e4m3(w)
    total = reference.promoted_matmul(codes, sf, w_codes, w_sf).double()
    error = (reference.promoted_matmul(codes, sf, w_codes, w_sf, "hopper").double() - total).abs()
    operands = quant.dequantize_e4m3_f32(codes, sf), quant.dequantize_weight_e4m3(w_codes, w_sf)
    assert bool((error <= bounds._sum_error(*operands, total, promoted=True)).all())


def change_weights(case: Case, **change) -> list[torch.Tensor]:
    weights = [dataclasses.replace(w, **{name: f(getattr(w, name)) for name, f in change.items()}) for w in case.weights]
    return dataclasses.replace(case, weights=weights).reference().y


def roll_bytes(t: torch.Tensor, shift: int, dim: int) -> torch.Tensor:
    return t.view(torch.uint8).roll(shift, dim).view(FP8)


def one_scale(case: Case) -> list[torch.Tensor]:
    sf = [s.clone() for s in case.x_sf]
    sf[1][2, sf[1][2].argmax()] *= 2
    return dataclasses.replace(case, x_sf=sf).reference().y


FAULTS = {
    "slots swapped": lambda c: dataclasses.replace(c, topk_weights=[w.flip(1) for w in c.topk_weights]).reference().y,
    "weight twice": lambda c: dataclasses.replace(c, topk_weights=[w.square() for w in c.topk_weights]).reference().y,
    "one token scale": one_scale,
    "token scales of the next block": lambda c: dataclasses.replace(c, x_sf=[s.roll(1, 1) for s in c.x_sf]).reference().y,
    "gate and up scales swapped": lambda c: change_weights(c, fc1_sf=lambda s: s.roll(s.shape[1] // 2, 1)),
    "gate and up rows swapped": lambda c: change_weights(c, fc1=lambda w: roll_bytes(w, w.shape[1] // 2, 1)),
    "weight scales of the next block": lambda c: change_weights(c, fc2_sf=lambda s: s.roll(1, 2)),
    "Linear2 in another K order": lambda c: change_weights(c, fc2=lambda w: roll_bytes(w, 8, 2)),
    "neighboring channels swapped": lambda c: change_weights(c, fc2=lambda w: roll_bytes(w, 1, 2)),
}


@cache
def bounded(exact: bool) -> tuple[Case, list[torch.Tensor], list[torch.Tensor]]:
    """A case, its result and its bound."""
    case = random_case(MEDIUM, [9, 7], seed=3, exact=exact)
    return case, case.reference().y, case.bound()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_results_leave_the_bound(fault, exact):
    case, y, bound = bounded(exact)
    found = violations(FAULTS[fault](case), y, bound)
    assert sum(len(v) for v in found) > 0


def test_transformed_weights_describe_the_same_layer():
    case = random_case(MEDIUM, [3, 3], seed=9)
    back = [quant.inverse_transform_weights(MEDIUM, SM90, quant.transform_weights(MEDIUM, SM90, w)) for w in case.weights]
    assert same(case.reference().y, dataclasses.replace(case, weights=back).reference().y)


def test_requantization_is_a_power_of_two_per_128_channels():
    codes, sf = reference.requantize(torch.cat([torch.ones(1, 128), torch.full((1, 128), 1000.0)], dim=1), "fp8xfp8")
    assert sf.tolist() == [[2.0**-8, 4.0]] and codes.double().unique().tolist() == [256.0]


def test_sampled_tokens_have_the_bits_of_the_whole_layer():
    weights = [random_weights(MEDIUM, rank, seed=4) for rank in range(2)]
    tokens = [random_inputs(MEDIUM, rank, 20 + rank, seed=4, mask=0.3, skew=True) for rank in range(2)]
    case = Case(MEDIUM, *(list(t) for t in zip(*tokens, strict=True)), weights, exact=False)
    picks = [torch.tensor([7, 0, 19]), torch.tensor([20])]

    whole, sample = case.reference().y, sampled(case, picks).reference().y
    assert same(sample, [y[pick] for y, pick in zip(whole, picks, strict=True)])
    # A process that checks its own tokens needs no inputs of the others.
    own = {name: [getattr(case, name)[0][:0], getattr(case, name)[1]] for name in ("x", "x_sf", "topk_idx", "topk_weights")}
    alone = sampled(dataclasses.replace(case, **own), [torch.tensor([], dtype=torch.int64), picks[1]]).reference().y
    assert alone[0].shape == (0, 1024) and same(alone[1:], sample[1:])
    assert same(case.to("cpu").reference().y, whole)


@pytest.mark.parametrize("exact", [True, False])
def test_weights_and_tokens_of_a_rank_are_reproducible(exact):
    first, again, other = (random_weights(MEDIUM, rank, seed=1, exact=exact) for rank in (0, 0, 1))
    first.validate(MEDIUM)
    assert same([first.fc1, first.fc2_sf], [again.fc1, again.fc2_sf]) and not same([first.fc1], [other.fc1])
    x, x_sf, idx, weight = random_inputs(MEDIUM, 1, 64, seed=1, exact=exact)
    assert x.shape == (64, 1024) and x_sf.shape == (64, 8) and idx.dtype == torch.int64 and weight.dtype == torch.float32
    assert not same([x], [random_inputs(MEDIUM, 0, 64, seed=1, exact=exact).x])
    assert same([first.fc1, x], [random_weights(MEDIUM, 0, 1).fc1, random_inputs(MEDIUM, 1, 64, 1).x]) == (not exact)
    if exact:  # partial sums are exact, so only the order of FP32 additions could matter, and that is fixed
        inputs = [[t, t] for t in (x[:9], x_sf[:9], idx[:9], weight[:9])]
        case = Case(MEDIUM, *inputs, [first, other], exact=True)
        results = [case.reference(mode).y for mode in (torch.float64, "hopper")]
        assert same(*results)


def test_errors_name_the_field():
    case = random_case(SMALL, [2, 2], seed=1, exact=False)
    for change, match in (
        ({"x_sf": [s.double() for s in case.x_sf]}, r"x_sf\[0\] = 'torch.float64 \(2, 2\)': must be torch.float32 \(2, 2\)"),
        ({"weights": [dataclasses.replace(w, fc2=w.fc1) for w in case.weights]}, r"fc2.shape = "),
    ):
        with pytest.raises(ValueError, match=match):
            dataclasses.replace(case, **change).reference()
    own = case.weights[0]
    with pytest.raises(ValueError, match=r"x_sf = 'torch.float32 \(2, 1\)': must be torch.float32 \(2, 2\)"):
        reference.promoted_matmul(case.x[0], case.x_sf[0][:, :1], own.fc1[0], own.fc1_sf[0])
    with pytest.raises(ProblemError, match="rank = 2: must be between 0 and num_ranks - 1 = 1"):
        random_weights(SMALL, 2, seed=0)
    with pytest.raises(ProblemError, match=r"seed = 18446744073709551616: must be between -2\^63 and 2\^64 - 1$"):
        random_case(SMALL, [2, 2], seed=1 << 64)
    with pytest.raises(ProblemError, match=r"seed = 35184372088832: must be between -2\^63 and 2\^64 - 1 when multiplied by 1000003"):
        random_weights(SMALL, 0, seed=1 << 45)
    old = random_case(dataclasses.replace(SMALL, recipe="fp8xfp4"), [2, 2], seed=1, exact=False)
    with pytest.raises(ValueError, match="accumulate: 'hopper', allowed for fp8xfp4"):
        old.reference("hopper")
