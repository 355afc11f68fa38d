"""What the fuzzer reaches: how it searches, what each of its machines compares, and what it says while it runs."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

import fuzz as run_module
from fuzz import run_fuzz, said
from fuzzing import check as check_module
from fuzzing import search as search_module
from fuzzing.check import FindingError, GpuMachine, SimulatedMachine, check_trial, has_stages, unequal_bits, unlike_reference
from fuzzing.options import WAYS, FuzzOptions
from fuzzing.search import FoundError, Searcher, first_failure
from fuzzing.trial import ON_A_GPU, SIMULATED, ExpertTrial, FuzzedCall, Sizes, Trial, case_of, read_trial
from megamoe_dsl import Target, choose
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.reference import error_bound

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=8, recipe="fp8xfp8", weigh_results=True)
CONFIG = choose(PROBLEM, Target.typical("sm_90a", 2), 3)
TRIAL = Trial(CONFIG, (FuzzedCall((3,), values="normal"),))
EXPERTS = ExpertTrial(replace(PROBLEM, recipe="bf16xbf16"), (FuzzedCall((3,)),) * 2, ("trained",) * 2)
SEED = 5
pytestmark = pytest.mark.usefixtures("one_thread")


def test_rounds_of_a_search_try_other_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "TRIALS_A_ROUND", 3)
    seen = list[Any]()
    first_failure(st.integers(0, 1 << 40), lambda trial: "", seen.append, SEED, seconds=60, most=30)
    assert len(set(seen)) > 15


LISTS: Any = st.lists(st.integers(0, 1 << 20), max_size=20).map(tuple)


def large(trial: Any) -> str:
    return "large" if len(trial) >= 12 else ""


@pytest.mark.parametrize("seconds", [1.0, 10_000.0])
def test_shrinking_ends_two_minutes_after_the_first_failure(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much was left of the time, and however many trials fail meanwhile; each takes 25 seconds."""
    seen, now = list[Any](), 0.0

    def check(trial: Any) -> str:
        nonlocal now
        now += 25 * any(map(large, seen[:-1]))
        return large(trial)

    monkeypatch.setattr(search_module, "time", SimpleNamespace(monotonic=lambda: now))
    found = first_failure(LISTS, check, seen.append, SEED, seconds=seconds)
    assert isinstance(found, FoundError) and [bool(large(one)) for one in seen].index(True) == len(seen) - 6


def test_a_failure_after_which_nothing_runs_is_the_last_trial() -> None:
    ran = list[Any]()
    found = first_failure(LISTS, large, ran.append, SEED, seconds=60, shrinks=lambda: False)
    assert isinstance(found, FoundError) and ran[-1] == found.trial and not any(map(large, ran[:-1]))
    shrunk = first_failure(LISTS, large, ran.append, SEED, seconds=60)
    assert isinstance(shrunk, FoundError) and shrunk.trial == (0,) * 12 != found.trial  # type: ignore[comparison-overlap]


def test_the_last_trial_of_so_many_is_shrunk() -> None:
    seen = list[Any]()
    found = first_failure(LISTS, lambda trial: "late" if len(seen) >= 20 else "", seen.append, SEED, seconds=60, most=20)
    assert isinstance(found, FoundError) and len(seen) > 20 and len(found.trial) < len(seen[19])  # type: ignore[arg-type]


@pytest.fixture
def as_installed() -> Iterator[None]:
    """Hypothesis as users have it: with a deadline and health checks."""
    before = settings.get_current_profile_name()
    settings.register_profile("installed", deadline=200, suppress_health_check=())
    settings.load_profile("installed")
    yield
    settings.load_profile(before)


@pytest.mark.usefixtures("as_installed")
def test_a_slow_trial_is_no_failure() -> None:
    trials: Any = st.integers(0, 1 << 30).filter(lambda number: number % 40 == 0)
    ran = list[int]()

    def check(trial: Any) -> str:
        ran.append(trial)
        sleep(0.25 if len(ran) == 2 else 0)
        return "late" if len(ran) > 20 else ""

    found = first_failure(trials, check, lambda trial: None, SEED, seconds=60)
    assert isinstance(found, FoundError) and found.wrong == "late"


def test_what_a_process_has_found_outlives_it() -> None:
    found = FoundError(TRIAL, "wrong")
    ended: Any = SimpleNamespace(join=lambda: None, exitcode=3)
    assert Searcher(ended, TRIAL, found).ending() is found


def test_a_process_tells_its_smallest_failure_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "check_trial", lambda trial, machine: "few" if sum(trial.calls[-1].tokens) >= 3 else "")
    seen = list[Any]()
    search_module.search(FuzzOptions(), ("sm_90a",), 0, SimpleNamespace(send=seen.append))  # type: ignore[arg-type]
    failing = [one.trial for one in seen if isinstance(one, FoundError)]
    assert sum(failing[-1].calls[-1].tokens) in (3, 4), "the simulator shrinks"
    assert failing[-1] is seen[-1].trial and sum(failing[-1].calls[-1].tokens) == min(sum(one.calls[-1].tokens) for one in failing)
    assert [one.to_json() for one in failing].count(failing[-1].to_json()) == 2


def test_rounds_of_two_processes_have_seeds_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = list[int]()
    monkeypatch.setattr(search_module, "first_failure", lambda trials, check, tell, seed, *_, **__: seeds.append(seed))
    for number in range(3):
        search_module.search(FuzzOptions(seed=7), ("sm_90a",), number, SimpleNamespace(send=None))  # type: ignore[arg-type]
    assert seeds[0] == 7 and all(b - a > 1 << 30 for a, b in pairwise(seeds))


@pytest.mark.parametrize(("gpu", "sizes"), [(False, SIMULATED), (True, ON_A_GPU)])
def test_a_gpu_has_larger_layers(gpu: bool, sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    monkeypatch.setattr(search_module, "machine_of", lambda given: (SimulatedMachine(), ()))
    for name in ("trials", "expert_trials"):
        monkeypatch.setattr(search_module, name, lambda *given: asked.append(given[0]) or st.just(TRIAL))
    search_module.search(FuzzOptions(gpu=gpu, minutes=-1.0), (), 0, SimpleNamespace(send=None))  # type: ignore[arg-type]
    assert set(map(id, asked)) == {id(sizes)}


def test_another_bit_on_hopper_is_found() -> None:
    """Sums of normal numbers are known to the bit there."""

    flipped = 0

    class Oracle(SimulatedMachine):
        def results(self, config: Any, cases: Sequence[Any], schedule: int, *, fused: bool) -> list[list[torch.Tensor]]:
            found = [case.reference("hopper").y for case in cases]
            found[0][0].view(torch.int16)[0, 0] ^= flipped
            return found

    assert check_trial(TRIAL, Oracle()) == ""
    flipped = 1
    assert check_trial(TRIAL, Oracle()) == "call 1: 1 elements of y differ from the reference by more than the bound"


def test_elements_of_all_ranks_are_counted() -> None:
    """On SM100 by the case's bound, on Hopper by the machine's; a NaN is beyond any."""
    case = case_of(replace(PROBLEM, num_ranks=2), FuzzedCall((2, 3), values="normal"))
    for promoted, accumulate in ((True, "hopper"), (False, torch.float64)):
        y = [one.clone() for one in case.reference(accumulate).y]  # type: ignore[arg-type]
        assert unlike_reference(case, y, SimulatedMachine(), promoted=promoted) == 0
        y[0][1, 3] += 9
        y[1][0, :2] = torch.nan
        assert unlike_reference(case, y, SimulatedMachine(), promoted=promoted) == 3


def test_a_gpus_functions_are_approximate(tmp_path: Path) -> None:
    """Sums of exact data are known all the same."""
    exact, heavy = (case_of(PROBLEM, FuzzedCall((3,), values=values, seed=2)) for values in ("exact", "heavy"))
    machine = GpuMachine(tmp_path)
    assert not machine.hopper_bound(exact)[0].any() and machine.hopper_bound(exact)[0].shape == (3, 256)
    (bound,), (wanted,) = machine.hopper_bound(heavy), error_bound(heavy, sums_exact=True, accumulate="hopper")
    assert torch.equal(bound, wanted) and bool((bound > 0).any())


def test_a_gpu_that_refuses_all_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator goes on."""
    waited = list[str]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("once"))
    assert SimulatedMachine().works() and waited == [] and GpuMachine(tmp_path).works() and waited == ["once"]

    def refuse() -> None:
        raise RuntimeError("unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    assert not GpuMachine(tmp_path).works()


def test_a_process_takes_its_share_of_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(search_module.os, "sched_getaffinity", lambda process: set(range(8 if process == 0 else 1)))
    for jobs in (1, 3, 16):
        search_module.search(FuzzOptions(jobs=jobs, minutes=-1.0), ("sm_90a",), 0, SimpleNamespace(send=None))  # type: ignore[arg-type]
    assert asked == [8, 2, 1]


def test_calls_in_a_graph_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph holds the second call, and runs twice; a compiled one is whole, and of any number of tokens."""
    noted, y = list[str](), torch.ones(1)

    def moe(number: int) -> Any:
        noted.append(f"call {number}")
        return SimpleNamespace(is_cuda=True, name=f"y of call {len(noted)}")

    @contextmanager
    def captured(graph: Any) -> Iterator[None]:
        noted.append("begin")
        yield
        noted.append("end")

    graph = SimpleNamespace(replay=lambda: noted.append("replay"))
    monkeypatch.setattr(check_module, "moe", moe)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", captured)
    ((found, wanted),) = check_module.in_graph({"number": 7}, y)
    assert (found.name, wanted) == ("y of call 3", y)  # type: ignore[attr-defined]
    assert noted == ["call 7", "begin", "call 7", "end", "replay", "replay"]
    options = list[dict[str, Any]]()
    monkeypatch.setattr(torch.compiler, "reset", lambda: noted.append("reset"))
    monkeypatch.setattr(torch, "compile", lambda function, **given: options.append(given) or function)
    assert check_module.compiled({"number": 8}, y)[0][1] is y and noted[-2:] == ["reset", "call 8"]
    assert options == [{"fullgraph": True, "backend": "aot_eager", "dynamic": True}]


def test_bits_are_compared_not_numbers() -> None:
    """Of all calls and ranks."""
    zero, nan = torch.tensor([0.0, 1.0]), torch.tensor([float("nan")])
    assert unequal_bits([[zero, nan], [zero, -nan]], [[-zero, nan], [-zero, nan]]) == 5
    assert (unequal_bits([[zero]], [[-zero]]), unequal_bits([[nan]], [[nan.clone()]])) == (2, 0)


def test_the_simulator_runs_each_call_with_its_weights_and_a_race_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, findings = list[Any](), list[str]()

    class Layer:
        def __init__(self, artifacts: Any, weights: Any, seed: int) -> None:
            loaded.append(weights)

        def load_weights(self, weights: Any) -> None:
            loaded.append(weights)

        def __call__(self, inputs: Any) -> Any:
            return [len(one.x) for one in inputs], SimpleNamespace(findings=findings)

    monkeypatch.setattr(check_module, "SimulatedMoE", Layer)
    monkeypatch.setattr(check_module, "compile_kernel", lambda config, line_info: config)
    exact, normal = (case_of(PROBLEM, FuzzedCall((3,), values=values)) for values in ("exact", "normal"))
    assert SimulatedMachine().results(CONFIG, [exact, exact, normal], 0, fused=True) == [[3]] * 3
    assert loaded == [exact.weights, normal.weights]
    findings.append("a race")
    with pytest.raises(FindingError, match="a race"):
        SimulatedMachine().results(CONFIG, [exact], 0, fused=True)


def test_stages_have_no_ring() -> None:
    many = choose(replace(PROBLEM, max_tokens_per_rank=512), Target.typical("sm_90a", 2), 512)
    assert has_stages(many) and not has_stages(many.replace(pool_rows=128))


def test_gradients_are_compared_between_ways_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate and up stored or computed again, weights quantized by the call or before it; y with the layer's."""
    called, names = list[tuple[Any, ...]](), ("x", "w1", "w2", "topk_weights")

    def moe(recipe: Any, recompute: bool, quantized: Any, **given: torch.Tensor) -> torch.Tensor:
        called.append((recipe, recompute, quantized))
        return torch.stack([given[name] for name in names]).prod(dim=0) * (2 if recompute else 1)

    monkeypatch.setattr(check_module, "moe", moe)
    monkeypatch.setattr(check_module, "quantize_experts", lambda w1, w2: "made")
    given = {name: torch.full((1,), 3.0) for name in names}
    of_y, *pairs = check_module.trained(given, torch.full((1,), 2.0))
    assert [one.item() for one in of_y] == [81, 2]
    assert [(one.item(), other.item()) for one, other in pairs] == [(81, 162), *[(54, 108)] * 4] * 2
    assert called == [(None, False, None), (None, True, None), (check_module.FP8, False, None), (check_module.FP8, True, "made")]


def test_a_printed_command_is_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu, trial in ((False, EXPERTS), (True, replace(TRIAL, schedule=7))):
        *_, command = said(FoundError(trial, "wrong"), FuzzOptions(gpu=gpu)).splitlines()
        words = shlex.split(command)
        assert words[:-2] == ["python", "bench/fuzz.py", *["--gpu"] * gpu] and words[-2] == "--repeat" and read_trial(words[-1]) == trial
    assert json.loads(TRIAL.to_json())["config"]["problem"].keys() == {
        "hidden", "intermediate", "num_experts", "topk", "max_tokens_per_rank", "recipe", "weigh_results",
    }  # fmt: skip


def test_a_trial_of_another_architecture_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "machine_of", lambda given: (SimulatedMachine(), ("sm_100a",)))
    with pytest.raises(ProblemError, match="--repeat = 'sm_90a': must be a trial of sm_100a"):
        run_fuzz(FuzzOptions(repeat=TRIAL.to_json()), print)
    with pytest.raises(ProblemError, match="must be a trial as the fuzzer prints it"):
        read_trial('{"calls": [{"color": 1}]}')


def test_a_line_now_and_then_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 20 seconds, here at every other trial."""

    def search(given: Any, arches: Any, tell: Any, fails: Any) -> list[FoundError]:
        for trial in (TRIAL, TRIAL, EXPERTS, EXPERTS):
            tell(trial)
        fails(FoundError(TRIAL, "wrong"))
        return [FoundError(EXPERTS, "small")]

    clock, lines = itertools.count(0, 11), list[str]()
    monkeypatch.setattr(run_module, "search_in_processes", search)
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert not run_fuzz(FuzzOptions(), lines.append)
    first, second, failing, verdict = lines
    assert first == "33 s: 2 trials: 2 sm_90a fp8xfp8"
    assert second == "66 s: 4 trials: 2 moe bf16xbf16, 2 moe trained, 2 sm_90a fp8xfp8"
    assert failing.startswith("to be shrunk: FAIL: wrong\n") and verdict.startswith("1 failed in 77 s of 1 processes; 4 trials: ")


def test_all_ways_have_a_comparison() -> None:
    assert tuple(check_module._CALLED) == WAYS
