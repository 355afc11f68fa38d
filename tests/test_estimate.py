"""What `megamoe simulate` says before it makes data, and while it does."""

import re
from dataclasses import replace
from io import StringIO

import cutlass.cute as cute
import pytest
import torch
from cutlass.base_dsl.common import DSLRuntimeError
from rich.console import Console
from typer.testing import CliRunner

from megamoe_dsl import GemmConfig, GemmProblem, Problem, ProblemError, Target, choose
from megamoe_dsl.cases import random_case
from megamoe_dsl.cli import estimate
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.estimate import GIB, Estimate
from megamoe_dsl.cli.tables import steps
from megamoe_dsl.presets import PRESETS

runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DSLRuntimeError("not here")

    monkeypatch.setattr(cute, "compile", fail)


def of(problem: Problem, tokens: list[int], launches: int = 1, exact: bool = True) -> Estimate:
    return Estimate.of(choose(problem, Target.typical("sm_100a", 4), max(tokens)), tokens, launches, exact)


def test_instructions_and_memory_are_near_what_was_seen() -> None:
    seen = 1_971_026 / estimate.INSTRUCTION_RATE + 11.4  # 8 experts of Flash, 3 tokens on both ranks: instructions, and seconds of data
    found = of(PRESETS["flash"].problem(3, num_experts=8, num_ranks=2), [3, 3])
    assert seen / 2 < found.seconds < seen * 2
    assert 0.5 < found.num_bytes / 1159e6 < 2


def test_more_takes_more() -> None:
    flash = PRESETS["flash"].problem(4, num_experts=16, num_ranks=2)
    base = of(flash, [4, 4])
    for more in (
        of(PRESETS["flash"].problem(4, num_experts=32, num_ranks=2), [4, 4]),
        of(flash, [4, 4], launches=2),
        of(flash, [4, 4], exact=False),
    ):
        assert more.num_bytes > base.num_bytes and more.seconds > base.seconds


def test_figures() -> None:
    """Bytes of weights and of buffers, and seconds: of three launches of normal data, and of a GEMM."""
    layer, gemm = Problem(1024, 512, 16, 2, 2, 256), GemmConfig(GemmProblem(2048, 1536, "packed", 8), 128, 256)
    some, few = of(layer, [200, 7], launches=3, exact=False), of(layer, [1, 0])
    byte = of(replace(layer, recipe="mxfp8xmxfp8"), [1, 0], exact=False)
    rows, one_row = (Estimate.of_gemm(gemm, rows, 2) for rows in (3000, 1))
    found = [(one.weight_bytes, one.buffer_bytes, one.seconds) for one in (some, few, byte, rows, one_row)]
    assert found == [pytest.approx(one, rel=1e-9) for one in FIGURES]
    assert rows.num_bytes == GIB // 2 + rows.weight_bytes + rows.buffer_bytes


def test_scales_are_as_long_as_they_are() -> None:
    """A byte for each weight, four for each scale of 128 x 128 of them; three copies of 16 experts."""
    problem = Problem(1024, 512, 16, 2, 2, 256, recipe="fp8xfp8")
    found = Estimate.of(choose(problem, Target.typical("sm_90a", 4), 1), [1, 0], 1, True)
    assert found.weight_bytes == 3 * 16 * 3 * 1024 * 512 * (1 + 4 / 128**2)


FIGURES = [
    (467927040, 26148352, 79.702256),
    (40108032, 26148352, 2.3884),
    (77856768, 26148352, 9.92504),
    (276824064, 86016000, 28.83584),
    (276824064, 28672, 1.050148864),
]


def test_limits() -> None:
    """What lacks memory names what takes most of it; what takes more than an hour is asked for."""
    for weight, buffer, name in ((3 * GIB, GIB, "--experts"), (GIB, 3 * GIB, "--tokens")):
        one = Estimate(weight, buffer, 3600.0)
        one.require_memory(GIB // 2 + 4 * GIB, ("--experts", 8), ("--tokens", 9))
        with pytest.raises(ProblemError, match=rf"{name} = \d: must be fewer: about 4 GiB of memory are needed, 4 GiB are there"):
            one.require_memory(GIB // 2 + 4 * GIB - 1, ("--experts", 8), ("--tokens", 9))
        one.require_yes(False)
    replace(one, seconds=3601.0).require_yes(True)
    with pytest.raises(ProblemError, match=r"--yes = False: must be given to start what takes about 4\.5 GiB of memory and 60 min: fewer"):
        replace(one, seconds=3601.0).require_yes(False)
    times = {119.0: "119 s", 120.0: "2 min", 3 * 3600.0 - 1: "180 min", 3 * 3600.0: "3 hours"}
    assert [str(replace(one, seconds=seconds)) for seconds in times] == [f"about 4.5 GiB of memory and {time}" for time in times.values()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "flash"], "error: --experts = 256: must be fewer: about"),
        (["--preset", "flash", "--experts", "8", "--ranks", "2", "--tokens", "1000000"], "error: --tokens = 1000000: must be fewer: about"),
    ],
)
def test_what_does_not_fit_is_refused_before_compiling(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.cli.simulate.physical_memory", lambda: 4 * GIB)
    result = runner.invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr and "GiB of memory are needed, 4 GiB are there" in result.stderr


def test_the_estimate_is_shown_and_a_long_one_says_what_makes_it_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.cli.simulate.physical_memory", lambda: 1000 * GIB)
    short = runner.invoke(app, ["simulate", "--preset", "flash", "--experts", "8", "--ranks", "2", "--tokens", "3"]).output
    assert re.search(r"A rough estimate: about .* after compiling\.", short) and "--experts" not in short
    long = runner.invoke(app, ["simulate", "--preset", "pro", "--tokens", "13", "--random"]).output
    assert [long.count(f"\n{title}") + long.startswith(title) for title in ("Problem", "Configuration", "A rough estimate: about")] == [
        1,
        1,
        1,
    ]
    assert "That is long: fewer --experts, --ranks or --tokens make it shorter" in long and "That is long" not in short


@pytest.mark.parametrize("recipe", ["fp8xfp4", "fp8xfp8"])
def test_progress_is_told_per_rank_and_expert_and_changes_nothing(recipe: str) -> None:
    problem, told = Problem(256, 128, 4, 4, 2, 5, recipe), []
    case = random_case(problem, [5, 2], seed=3, progress=told.append)
    ranks, experts = [f"weights of rank {rank} of 2" for rank in range(2)], [f"exact sums of expert {expert} of 4" for expert in range(4)]
    assert told == [*ranks, *experts]
    for ours, silent in zip(case.weights, random_case(problem, [5, 2], seed=3).weights, strict=True):
        assert torch.equal(ours.fc2.view(torch.uint8), silent.fc2.view(torch.uint8))


def test_the_step_that_data_is_at_is_shown() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=100)
    with steps(console) as show:
        show("weights of rank 1 of 8")
    assert "making data: weights of rank 1 of 8" in console.file.getvalue()
