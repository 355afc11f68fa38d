"""What the fuzzer draws: sizes of layers, calls in a row, ways to call `moe`, and the data of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from fuzz import kinds
from fuzzing import trial as trial_module
from fuzzing.options import WAYS
from fuzzing.search import FoundError, first_failure
from fuzzing.trial import (
    CANCELLING,
    ON_A_GPU,
    SIMULATED,
    VALUES,
    ExpertTrial,
    FuzzedCall,
    Sizes,
    Trial,
    case_of,
    changed,
    expert_trials,
    moved,
    repeated,
    trials,
    weights_of,
)
from megamoe_dsl import Target, choose
from megamoe_dsl.cases import Case, random_inputs, random_weights
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import encode_e4m3

SEED = 5
PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=8, recipe="fp8xfp8", weigh_results=True)

TINY = Sizes(hidden=256, intermediate=128, experts_per_rank=2, topk=1, ranks=1, tokens=3, sms=2, calls=2)


def drawn_from(strategy: Any, most: int) -> list[Any]:
    seen = list[Any]()
    assert first_failure(strategy, lambda trial: "", seen.append, SEED, seconds=60, most=most) is None
    return seen


@pytest.fixture(scope="module")
def layers() -> list[Trial]:
    return drawn_from(trials(SIMULATED), 100)


@pytest.fixture(scope="module")
def experts() -> list[ExpertTrial]:
    return drawn_from(expert_trials(SIMULATED), 100)


def sizes_of(problem: Problem, calls: Sequence[FuzzedCall], sms: int) -> Sizes:
    tokens = max(problem.max_tokens_per_rank, *(count for call in calls for count in call.tokens))
    counts = {"experts_per_rank": problem.experts_per_rank, "topk": problem.topk, "ranks": problem.num_ranks}
    return Sizes(hidden=problem.hidden, intermediate=problem.intermediate, tokens=tokens, sms=sms, calls=len(calls), **counts)


def reached(found: Sequence[Sizes]) -> Sizes:
    """The most of each."""
    return Sizes(**{one.name: max(getattr(sizes, one.name) for sizes in found) for one in fields(Sizes)})


def test_layers_are_as_large_as_allowed(layers: list[Trial], experts: list[ExpertTrial]) -> None:
    """Calls of `moe` are of one rank, and on no GPU's SMs."""
    assert reached([sizes_of(one.config.problem, one.calls, one.config.num_sms) for one in layers]) == SIMULATED
    assert reached([sizes_of(one.problem, one.calls, 0) for one in experts]) == replace(SIMULATED, ranks=1, sms=0, hidden=512)
    found = reached([sizes_of(one.config.problem, one.calls, one.config.num_sms) for one in drawn_from(trials(ON_A_GPU), 20)])
    assert all(getattr(found, one.name) <= getattr(ON_A_GPU, one.name) for one in fields(Sizes)) and found.experts_per_rank > 4


def test_every_kind_of_layer_is_drawn(layers: list[Trial]) -> None:
    counted = {kind for trial in layers for kind in kinds(trial)}
    assert {"unfused", "another tile", "ring", "biases"} <= counted
    assert {one.split()[0] for one in counted} >= {"sm_90a", "sm_100a"}
    rings = {arch: {one.config.pool_rows for one in layers if one.config.arch.name == arch} for arch in ("sm_90a", "sm_100a")}
    assert rings == {"sm_90a": {None, 128, 256}, "sm_100a": {None}}
    assert all(one.config.problem.hidden % 256 == 0 for one in layers if one.config.arch.name == "sm_100a")
    assert any(one.config.problem.hidden % 128 for one in layers), "channels that fill no tile"
    assert any(one.schedule for one in layers) and any(len(one.calls) > 1 and one.calls[0] != one.calls[1] for one in layers)
    assert len({call.seed for one in layers for call in one.calls}) > 20
    assert any(0 in call.tokens for one in layers for call in one.calls), "ranks without tokens"
    assert {call.values for one in layers for call in one.calls} == set(VALUES)


def test_another_tile_is_any_of_the_layers(layers: list[Trial]) -> None:
    """Not the one that is chosen alone."""
    others = [one for one in layers if one.other is not None]
    assert {(one.other.problem, one.other.num_sms) == (one.config.problem, one.config.num_sms) for one in others if one.other} == {True}
    usual = [choose(one.config.problem, Target(one.config.arch, one.config.num_sms), 1) for one in others]
    assert 0 < len(others) < len(layers) and any(one.other != chosen for one, chosen in zip(others, usual, strict=True))


def test_calls_differ_in_one_thing_or_two(layers: list[Trial]) -> None:
    pairs = [(one, other) for trial in layers for one, other in zip(trial.calls, trial.calls[1:], strict=False)]
    differing = [sum(getattr(one, name.name) != getattr(other, name.name) for name in fields(one)) for one, other in pairs]
    assert len(pairs) > 20 and max(differing) <= 2


def test_calls_of_moe_are_some_that_it_takes(experts: list[ExpertTrial]) -> None:
    """In the layer of one GPU; in FP8 without gradients, in BF16 without a clamp but that of the activation itself."""
    assert {one.problem.recipe for one in experts} == {"fp8xfp8", "bf16xbf16"}
    for one in experts:
        problem, in_fp8 = one.problem, one.problem.recipe == "fp8xfp8"
        assert problem.fast_math and problem.weigh_results and not problem.biases
        assert (problem.hidden % 256, problem.intermediate % 128) == (0, 0) and len(one.ways) == len(one.calls)
        assert set(one.ways) <= set(WAYS[:3] if in_fp8 else WAYS)
        assert in_fp8 or problem.activation_clamp == (7.0 if problem.activation == "swigluoai" else None)
    assert {one.problem.activation_clamp for one in experts} == {None, 7.0, 10.0}
    assert {way for one in experts for way in one.ways} > set(WAYS[:3]), "some with gradients"


def test_the_smallest_trial_is_one_call_of_nothing() -> None:
    found = first_failure(trials(TINY), lambda trial: "wrong", lambda trial: None, SEED, seconds=60)
    assert isinstance(found, FoundError) and isinstance(found.trial, Trial)
    assert found.trial == Trial(found.trial.config, (FuzzedCall((0,)),)) and found.trial.config.arch.name == "sm_90a"
    problem = found.trial.config.problem
    assert (problem.experts_per_rank, problem.topk, problem.max_tokens_per_rank, problem.recipe) == (1, 1, 1, "fp8xfp8")


def test_layers_that_no_kernel_has_are_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    own = trial_module.MAKERS["sm_90a"]

    def maker(*given: Any, **options: Any) -> Any:
        asked.append(len(asked))
        if len(asked) % 2:
            raise ConfigError("block_m", 8, "another")
        return own(*given, **options)

    monkeypatch.setitem(trial_module.MAKERS, "sm_90a", maker)
    assert all(isinstance(one, Trial) for one in drawn_from(trials(SIMULATED, ("sm_90a",)), 5)) and len(asked) > 5


# --- data
def tensors(case: Case) -> list[torch.Tensor]:
    weights = [getattr(one, name) for one in case.weights for name in ("fc1", "fc1_sf", "fc2", "fc2_sf")]
    return [one.view(torch.uint8) for one in (*case.x, *case.x_sf, *case.topk_idx, *case.topk_weights, *weights)]


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4", "nvfp4xnvfp4", "bf16xbf16"])
@pytest.mark.parametrize("values", VALUES)
def test_a_calls_data_are_its_own(values: str, recipe: str) -> None:
    """Whatever a process has drawn before; weights are those of all seeds, but for exact data."""
    problem, call = replace(PROBLEM, recipe=recipe, num_ranks=2), FuzzedCall((4, 3), "zipf", values, 7)
    first = case_of(problem, call)
    weights_of.cache_clear()
    torch.manual_seed(99)
    assert all(map(torch.equal, tensors(first), tensors(case_of(problem, call))))
    other = case_of(problem, replace(call, seed=8))
    assert not torch.equal(first.x[0].view(torch.uint8), other.x[0].view(torch.uint8))
    assert torch.equal(first.weights[1].fc2.view(torch.uint8), other.weights[1].fc2.view(torch.uint8)) == (values != "exact")
    assert not torch.equal(first.weights[0].fc1.view(torch.uint8), first.weights[1].fc1.view(torch.uint8))
    halves = [torch.equal(*x.view(torch.uint8).chunk(2, dim=1)) for x in first.x]
    assert halves == [values == CANCELLING] * 2


def test_normal_data_are_those_of_cases() -> None:
    case, drawn = case_of(PROBLEM, FuzzedCall((4,), "uniform", "normal", 3)), random_inputs(PROBLEM, 0, 4, 3)
    assert torch.equal(case.x[0].view(torch.uint8), drawn.x.view(torch.uint8)) and torch.equal(case.x_sf[0], drawn.x_sf)
    assert torch.equal(case.topk_weights[0], drawn.topk_weights)
    assert torch.equal(case.weights[0].fc1_sf, random_weights(PROBLEM, 0, 0).fc1_sf)


@pytest.mark.parametrize(("decoded", "most"), [(False, 12), (True, 2)])
def test_heavy_tails_are_moved_both_ways_and_seldom_to_the_end(decoded: bool, most: int) -> None:
    """As many powers of two up as down: quotients of normal numbers, three times as large."""
    codes, scales = torch.zeros(4, 64, dtype=torch.uint8), torch.full((64, 64), 127, dtype=torch.uint8)
    found = changed(codes, scales, "heavy", torch.Generator().manual_seed(1), decoded=decoded)[1].int() - 127
    assert (int(found.min()), int(found.max())) == (-most, most) and abs(float((found > 0).float().mean()) - 0.45) < 0.03
    ends = float((found.abs() == most).float().mean())
    assert ends == pytest.approx(0.71 if decoded else 0.165, abs=0.03)


@pytest.mark.parametrize(("recipe", "heavy"), [("fp8xfp8", True), ("fp8xfp4", True), ("mxf4xmxf4", True), ("fp8xmxfp4", False)])
def test_weights_that_hopper_decodes_alone_have_short_tails(recipe: str, heavy: bool) -> None:
    (weights,) = weights_of(replace(PROBLEM, hidden=1024, intermediate=512, recipe=recipe), "heavy")
    scales = weights.fc1_sf.log2() if weights.fc1_sf.dtype == torch.float32 else weights.fc1_sf.float()
    assert (float(scales.max() - scales.min()) > 16) == heavy


def test_scales_in_fp32_use_all_bits() -> None:
    _, found = changed(torch.zeros(1), torch.ones(8, 8), "heavy", torch.Generator().manual_seed(1))
    mantissas = found.view(torch.int32) & 0x7FFFFF
    assert len(mantissas.unique()) == 64 and bool((mantissas & 0xFF).any()) and bool((mantissas >> 15).any())


def test_moved_scales_are_times_powers_of_two() -> None:
    values, binades = torch.tensor([1.0, 0.5, 6.0, 448.0]), torch.tensor([3, -2, 0, 1], dtype=torch.int32)
    assert moved(values, binades).tolist() == [8.0, 0.125, 6.0, 896.0]
    assert moved(torch.tensor([127, 1, 254], dtype=torch.uint8), torch.tensor([3, -2, 200], dtype=torch.int32)).tolist() == [130, 1, 254]
    found = moved(encode_e4m3(values), binades)
    assert found.dtype == torch.float8_e4m3fn and found.float().tolist() == [8.0, 0.125, 6.0, 448.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_what_has_halves_has_the_first_twice(dtype: torch.dtype) -> None:
    """In any dimension; an odd number of values stays as it is, also where its bytes have halves."""
    values = torch.arange(36).view(1, 6, 6).to(dtype)
    assert torch.equal(repeated(values, 1), torch.cat([values[:, :3], values[:, :3]], 1))
    assert torch.equal(repeated(values, 2), torch.cat([values[..., :3], values[..., :3]], 2))
    for odd, dim in ((values[..., :5].contiguous(), 2), (values[:, :5], 1)):
        assert torch.equal(repeated(odd, dim), odd)
    assert torch.equal(values, torch.arange(36).view(1, 6, 6).to(dtype)), "a copy"


def test_ranks_have_tokens_of_their_own() -> None:
    case = case_of(replace(PROBLEM, num_ranks=2), FuzzedCall((4, 4), values="normal"))
    assert not torch.equal(case.x[0].view(torch.uint8), case.x[1].view(torch.uint8))
