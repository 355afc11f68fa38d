"""bench/fuzz.py: a trial and its text, how a failure is shrunk, what each comparison finds, and a sample of trials on the simulator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fuzz
import fuzzing_process
from forked import forking
from fuzz import kinds, verdict
from fuzzing import check as check_module
from fuzzing import search as search_module
from fuzzing.check import GpuMachine, SimulatedMachine, check_trial
from fuzzing.options import WAYS, FuzzOptions
from fuzzing.search import FoundError, Searcher, first_failure
from fuzzing.trial import (
    SIMULATED,
    VALUES,
    AnyTrial,
    ExpertTrial,
    FuzzedCall,
    Sizes,
    Trial,
    case_of,
    expert_trials,
    moved,
    read_trial,
    trials,
)
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SM90
from megamoe_dsl.cases import Case
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant.weights import transform_weights
from megamoe_dsl.reference import activate, error_bound
from megamoe_dsl.reference import moe as reference_moe
from ptx_of import artifact
from simulated_gpu import SimulatedKernel, simulated_gpu, visible

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=8, recipe="fp8xfp8")
CONFIG = choose(PROBLEM, Target.typical("sm_90a", 2), 3)
CALLS = (FuzzedCall((3,)), FuzzedCall((5,), "masked", "zeros", 1))
TRIAL = Trial(CONFIG, CALLS, CONFIG.replace(block_m=16, num_stages=0), unfused=True)
TINY = Sizes(hidden=256, intermediate=128, experts_per_rank=3, topk=2, ranks=2, tokens=6, sms=2, calls=2)
SEED = 5
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("one_thread")


class Oracle(SimulatedMachine):
    """Runs nothing: the reference, unless something is planted."""

    def __init__(self, fused: float = 0.0, other: float = 0.0, unfused: float = 0.0) -> None:
        self.added = fused, other, unfused

    def results(self, config: MegaMoeConfig, cases: Sequence[Case], schedule: int, *, fused: bool) -> list[list[torch.Tensor]]:
        found = [[y.clone() for y in case.reference("hopper").y] for case in cases]
        found[-1][0][0, 0] += self.added[2 if not fused else int(config != CONFIG)]
        return found


@settings(max_examples=30)
@given(st.one_of(trials(SIMULATED), expert_trials(SIMULATED)))
def test_a_trial_is_its_text(trial: AnyTrial) -> None:
    assert read_trial(trial.to_json()) == trial


def test_trials_are_counted_by_what_they_try() -> None:
    assert kinds(TRIAL) == ["trials", "sm_90a fp8xfp8", "unfused", "another tile"]
    bare = replace(TRIAL, other=None, unfused=False)
    assert kinds(bare) == ["trials", "sm_90a fp8xfp8"]
    ring = replace(bare, config=CONFIG.replace(pool_rows=128))
    assert kinds(ring) == ["trials", "sm_90a fp8xfp8", "ring"]


def test_a_trial_in_a_command_has_what_is_no_default() -> None:
    assert set(json.loads(TRIAL.to_json())) == {"config", "other", "calls", "unfused"}
    assert json.loads(replace(TRIAL, other=None, unfused=False).to_json())["calls"][0] == {"tokens": [3]}


@pytest.mark.parametrize(
    ("machine", "wrong"),
    [
        (Oracle(), ""),
        (Oracle(fused=9.0), "call 2: 1 elements of y differ from the reference by more than the bound"),
        (Oracle(other=9.0), "1 elements of y differ from those of another tile"),
        (Oracle(unfused=9.0), "1 elements of y differ from those of the unfused layer"),
        (Oracle(fused=float("nan")), "call 2: 1 elements of y differ from the reference by more than the bound"),
        (SimpleNamespace(), "AttributeError: "),
    ],
    ids=["right", "reference", "tile", "unfused", "NaN", "raises"],
)
def test_every_comparison_finds_an_element(machine: Any, wrong: str) -> None:
    found = check_trial(TRIAL, machine)
    assert found.startswith(wrong) and bool(found) == bool(wrong)


@pytest.mark.parametrize("values", VALUES)
def test_data_are_what_they_are_called(values: str) -> None:
    case = case_of(PROBLEM, FuzzedCall((8,), values=values))
    codes, fc1 = case.x[0].view(torch.uint8), case.weights[0].fc1.view(torch.uint8)
    spread = float(case.x_sf[0].max() / case.x_sf[0].min())
    assert case.exact == (values == "exact")
    assert (spread > 2**12) == (values in ("heavy", "cancelling"))
    for some in (codes, fc1):
        assert (bool(((some & 0x78) == 0).all())) == (values == "subnormal")
        zeros = [float((some == zero).float().mean()) > 0.2 for zero in (0x00, 0x80)]
        assert zeros == [values == "zeros"] * 2 or values in ("subnormal", "exact")
    assert bool((codes == codes[:1]).all()) == (values == "equal") and not bool((fc1 == fc1[:1]).all())


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4", "fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8"])
def test_cancelling_sums_are_nothing_but_roundings(recipe: str) -> None:
    """Another order of additions gives another y, which for normal numbers would be rounded to the same BF16."""
    problem, y = replace(PROBLEM, hidden=512, intermediate=1024, recipe=recipe), {}
    for values in ("normal", "cancelling"):
        case = case_of(problem, FuzzedCall((4,), values=values))
        y[values] = [case.reference(accumulate).y[0] for accumulate in (torch.float64, torch.float32)]
    differing = {values: float((one != other).float().mean()) for values, (one, other) in y.items()}
    assert differing["normal"] < 0.05 and differing["cancelling"] > 0.15, differing


@pytest.mark.parametrize("down", [-400, 400])
def test_moved_scales_stay_numbers(down: int) -> None:
    """0 is a power of two that a few kernels flush, 255 a NaN."""
    found = moved(torch.arange(1, 255, dtype=torch.uint8), torch.full((254,), down, dtype=torch.int32))
    assert set(found.tolist()) == {1 if down < 0 else 254}


@pytest.mark.parametrize("values", ["heavy", "cancelling"])
def test_packed_weights_are_some_that_hopper_decodes(values: str) -> None:
    problem = Problem(2048, 1024, 8, 2, max_tokens_per_rank=8, recipe="fp8xmxfp4")
    (weights,) = case_of(problem, FuzzedCall((1,), values=values)).weights
    transform_weights(problem, SM90, weights)
    spread = [int(scales.max()) - int(scales.min()) for scales in (weights.fc1_sf, weights.fc2_sf)]
    assert all(12 <= one <= 14 for one in spread), spread


def quiet(trial: Trial) -> None: ...


def test_subnormal_codes_have_products_of_scales_that_hopper_can_part() -> None:
    problem = Problem(32, 192, 1, 1, max_tokens_per_rank=30, recipe="fp8xmxfp4")
    (y,) = case_of(problem, FuzzedCall((30,), values="subnormal")).reference("hopper").y
    assert 2.0**-90 < float(y.abs().max()) < 2.0**-60


def test_the_bound_of_bf16_begins_at_the_tensor_core_s_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the exact ones are all zero."""
    case = case_of(replace(PROBLEM, recipe="bf16xbf16"), FuzzedCall((8,), values="cancelling"))
    (y,), (bound,) = case.reference("hopper").y, error_bound(case, sums_exact=True, accumulate="hopper")
    monkeypatch.setattr(reference_moe, "activate", lambda *given: activate(*given) * (1 + 2.0**-18))
    (other,) = case.reference("hopper").y
    assert not torch.equal(y, other) and bool(((other.double() - y.double()).abs() <= bound).all())


def test_a_failure_is_shrunk_to_what_matters() -> None:
    def check(trial: Trial) -> str:
        return "few" if any(sum(call.tokens) >= 3 and call.values == "zeros" for call in trial.calls) else ""

    found = first_failure(trials(SIMULATED), check, quiet, SEED, seconds=60)
    assert isinstance(found, FoundError) and found.wrong == "few"
    assert (found.trial.other, found.trial.unfused, found.trial.schedule) == (None, False, 0)
    (call,) = found.trial.calls
    assert (call.values, call.routing, call.seed) == ("zeros", "uniform", 0) and sum(call.tokens) in (3, 4)
    text = verdict(Counter(trials=7, unfused=3), 1.0, [found], FuzzOptions(gpu=True, jobs=2))
    assert text.startswith("1 failed in 1 s of 2 processes; 7 trials: 3 unfused\nFAIL: few\n")
    assert "\npython bench/fuzz.py --gpu --repeat '{" in text


def test_a_search_ends_with_its_time_or_its_trials() -> None:
    seen = list[Any]()
    assert first_failure(trials(SIMULATED), lambda trial: "", seen.append, SEED, seconds=60, most=7) is None and len(seen) == 7
    assert first_failure(trials(SIMULATED), lambda trial: "wrong", quiet, SEED, seconds=0) is None


def test_a_process_that_dies_fails_or_hangs_has_found_something(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, first = list[Trial](), list[FoundError]()
    monkeypatch.setattr(search_module, "search", fuzzing_process.search)
    monkeypatch.setattr(search_module, "get_context", forking)
    monkeypatch.setattr(search_module, "GRACE_S", 5.0)
    found = search_module.search_in_processes(FuzzOptions(jobs=4, minutes=0.001), (TRIAL.to_json(),), seen.append, first.append)
    assert sorted(one.wrong for one in found) == ["has not ended 5 s after the time", "its process ended with exit code 3", "told"]
    assert seen == [TRIAL] * 4 and {one.trial for one in found} == {TRIAL}
    assert [one.wrong for one in first] == ["large"]


def test_a_process_that_ends_before_its_first_trial_is_an_error() -> None:
    ended: Any = SimpleNamespace(join=lambda: None, exitcode=3)
    with pytest.raises(ChildProcessError, match="a process ended with exit code 3 before its first trial"):
        Searcher(ended).ending()
    assert Searcher(SimpleNamespace(join=lambda: None, exitcode=0), TRIAL).ending() is None  # type: ignore[arg-type]
    for name, value in (("routing", "even"), ("values", "many")):
        with pytest.raises(ProblemError, match=f"{name} = '{value}': must be one of "):
            FuzzedCall((1,), **{name: value})  # type: ignore[arg-type]


def command(capsys: Capture, *words: str) -> tuple[int, str]:
    """Exit code and output of `python bench/fuzz.py WORDS`."""
    with patch("sys.argv", ["fuzz.py", *words]):
        code = fuzz.main()
    return code, "".join(capsys.readouterr())


def test_the_command_searches_in_processes(capsys: Capture) -> None:
    code, said = command(capsys, "--minutes", "0.0001", "--jobs", "1")
    assert code == 0 and said.startswith("PASS: none failed in "), said


def tried(given: FuzzOptions, arches: tuple[str, ...], number: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a process draws where nothing is wrong."""
    monkeypatch.setattr("fuzzing.search.check_trial", lambda trial, machine: "")
    seen = list[Any]()
    search_module.search(given, arches, number, SimpleNamespace(send=seen.append))  # type: ignore[arg-type]
    return seen


@pytest.mark.parametrize("way", ["trained", "graph"])
def test_calls_of_moe_in_one_way_are_drawn(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of BF16 weights alone."""
    seen = tried(FuzzOptions(minutes=0.004, way=way), (), 0, monkeypatch)
    assert len(seen) > 1 and all(set(one.ways) == {way} for one in seen)
    assert {one.problem.recipe for one in seen} - {"bf16xbf16"} == (set() if way == "trained" else {"fp8xfp8"})


def test_processes_try_other_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [tried(FuzzOptions(minutes=0.008, seed=3), ("sm_90a",), number, monkeypatch) for number in range(2)]
    assert min(map(len, seen)) > 1 and sum(one == other for one, other in zip(*seen, strict=False)) < min(map(len, seen))


def test_some_layers_have_the_references_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this seed: one of each architecture in two tiles, one of them unfused, too."""
    monkeypatch.setattr(check_module, "compile_kernel", lambda config, line_info: artifact(config))
    machine, seen = SimulatedMachine(), list[Trial]()
    found = first_failure(trials(TINY), lambda trial: check_trial(trial, machine), seen.append, 12, seconds=600, most=3)
    assert found is None, (found.wrong, found.trial.to_json())
    assert len(seen) == 3


@pytest.mark.parametrize("broken", ["", "compiled", "trained"])
def test_calls_of_moe_have_the_bits_of_the_layer(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here on the CPU; what gives other bits is found."""
    trial = ExpertTrial(replace(PROBLEM, weigh_results=True, recipe="bf16xbf16"), (FuzzedCall((3,)),) * len(WAYS), WAYS)
    own = check_module._CALLED[broken or "eager"]
    if broken:
        monkeypatch.setitem(check_module._CALLED, broken, lambda *given: [(one + 1, other) for one, other in own(*given)][-1:])
    elements = 3 * PROBLEM.hidden if broken == "compiled" else 3 * PROBLEM.topk
    assert check_trial(trial, SimulatedMachine()) == (
        f"call {WAYS.index(broken) + 1}, {broken}: {elements} elements differ" if broken else ""
    )


def test_calls_of_moe_in_fp8_have_the_layers_clamp_and_scales() -> None:
    """Gate and up lie beyond it."""
    problem = replace(PROBLEM, weigh_results=True, activation_clamp=0.125)
    trial = ExpertTrial(problem, (FuzzedCall((3,), values="normal"), FuzzedCall((2,), values="heavy")), ("eager", "graph"))
    assert check_trial(trial, SimulatedMachine()) == ""
    case = case_of(problem, trial.calls[0])
    assert not torch.equal(case.reference().y[0], replace(case, problem=replace(problem, activation_clamp=None)).reference().y[0])


@pytest.mark.parametrize(("ring", "calls"), [(None, 2), (128, 1)])
def test_a_gpu_runs_the_same(ring: int | None, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a simulated GPU, both calls on one buffer; each has ended before the next begins."""
    config = CONFIG.replace(pool_rows=ring)
    bind, ended = check_module.RankKernel, list[int]()

    def bound(stages: Any, symmetric: Any, *others: Any) -> Any:
        kernel = bind(stages, symmetric, *others)
        layer: Any = SimpleNamespace(memory=kernel.buffers, symmetric=symmetric, kernels={0: kernel}, problem=config.problem)

        def run(y: torch.Tensor) -> None:
            assert y.isnan().all()  # so that what is not written is found
            SimulatedKernel.tensors = visible(layer, y=y)
            kernel(y)

        return with_call(run, buffers=kernel.buffers, synchronize=lambda: ended.append(len(SimulatedKernel.launched)))

    monkeypatch.setattr(check_module, "RankKernel", bound)
    with simulated_gpu(monkeypatch) as gpu:
        trial = replace(TRIAL, config=config, calls=CALLS[:calls], other=None, unfused=False)
        assert check_trial(trial, GpuMachine(tmp_path, "cpu")) == ""
        assert gpu.launched == [config] * calls and ended == list(range(1, calls + 1))


def with_call(run: Callable[..., None], **attributes: Any) -> Any:
    """A callable with attributes."""
    vars(run).update(attributes)
    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "--minutes = 0.0: must be more than 0"),
        (["--seed", "-1"], "--seed = -1: must be 0 or more"),
        (["--jobs", "0"], "--jobs = 0: must be 1 to 256"),
        (["--jobs", "257"], "--jobs = 257: must be 1 to 256"),
        (["--way", "lazy"], "--way = 'lazy': must be one of eager, graph, compiled, trained, quantized"),
        (["--repeat", "{}"], "must be a trial as the fuzzer prints it"),
        (["--repeat", "[1"], "must be a trial as the fuzzer prints it"),
        (["--gpu"], "--gpu = 'cuda': must be a CUDA device, and torch finds none here"),
    ],
)
def test_bad_options_are_one_line(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, said = command(capsys, *words)
    assert code == 2 and message in said and said.count("\n") == 1, said


def test_a_printed_trial_runs_again(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """And fails again, with exit code 1."""
    monkeypatch.setattr("fuzzing.check.SimulatedMachine", lambda: Oracle(fused=9.0))
    code, said = command(capsys, "--repeat", TRIAL.to_json())
    assert code == 1 and said.startswith("FAIL: call 2: 1 elements"), said
