"""What `megamoe simulate` draws, runs and says, with stand-ins for compiler and simulator that write down what they were asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from megamoe_dsl import GemmProblem, Problem, ProblemError, Target, choose
from megamoe_dsl.arch import SM100
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem, VarlenKProblem
from megamoe_dsl.cli import simulations
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.options import SimulateOptions
from megamoe_dsl.cli.simulate import rotate
from megamoe_dsl.cli.simulations import BOUNDED, EQUAL, compared, rows_of
from megamoe_dsl.kernels.registry import find_kernel, kernel_of
from megamoe_dsl.runtime.simulated import RankComparison
from megamoe_dsl.sim import Report

LAYER = Problem(256, 128, 4, 2, 2, 5)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody compiles."""
    monkeypatch.setattr(simulations, "compiled", lambda console, configs: list(map(Kernel, configs)))


class Kernel(SimpleNamespace):
    def __init__(self, config: Any) -> None:
        super().__init__(config=config, kernel=kernel_of(config), ptx="ptx")


class Screen(Console):
    def __init__(self) -> None:
        super().__init__(file=StringIO(), width=150)

    @property
    def lines(self) -> list[str]:
        """With one space between words."""
        return [" ".join(line.split()) for line in self.file.getvalue().splitlines()]  # type: ignore[attr-defined]


# --- GEMMs
@pytest.mark.parametrize(
    ("problem", "text", "rows"),
    [
        (GemmProblem(128, 128), "130", [130]),
        (GemmProblem(128, 128, "packed", 3), "7", [7, 7, 7]),
        (GemmProblem(128, 128, "packed", 3), "7,0,9", [7, 0, 9]),
        (GemmProblem(128, 128, "packed", 3), "7,9", [7, 9]),  # refused where data are drawn
    ],
)
def test_one_number_of_rows_is_for_every_group(problem: GemmProblem, text: str, rows: list[int]) -> None:
    assert rows_of(problem, text) == rows
    with pytest.raises(ProblemError, match="tokens = -1: must be at least 0"):
        rows_of(problem, "-1")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("problem", "case", "more"),
    [
        (GemmProblem(128, 256), "gemm_case", {"arch": SM100}),
        (GatherGemmProblem(128, 256, num_groups=2), "gather_case", {"arch": SM100}),
        (GatherGemmProblem(128, 256, num_groups=2, gradient="gate_first"), "gradient_case", {}),
        (VarlenKProblem(128, 256, num_groups=2), "varlen_k_case", {"arch": SM100}),
    ],
    ids=["gemm", "gathered", "gradient", "of gradients"],
)
def test_data_are_of_the_problem_and_for_the_architecture(
    problem: Any, case: str, more: dict[str, Any], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose tensor core adds in an order of its own."""
    for name in ("gemm_case", "gather_case", "gradient_case", "varlen_k_case"):
        monkeypatch.setattr(simulations, name, lambda *given, name=name, **options: (name, given, options))
    config: Any = SimpleNamespace(problem=problem, arch=SM100)
    found: Any = simulations.case_of(config, [3, 4], 7, exact=exact)
    assert found == (case, (problem, [3, 4], 7), {"exact": exact, **more})


class GemmRun:
    """A case whose results are given, and a simulator that leaves them as they are."""

    def __init__(self, patch: pytest.MonkeyPatch, ends: dict[str, tuple[torch.Tensor, ...]]) -> None:
        self.asked: dict[str, Any] = {}
        self.ends, self.tensors = ends, object()
        patch.setattr(simulations, "case_of", self.case_of)
        patch.setattr(simulations, "simulate_gemm", self.simulate)

    def case_of(self, config: Any, counts: Sequence[int], seed: int, *, exact: bool) -> Any:
        self.asked |= {"counts": counts, "data": seed, "exact": exact}
        return self

    def compared(self, *, exact: bool, k_blocks: int) -> Any:
        self.asked |= {"k_blocks": k_blocks, "compared": exact}
        return self.ends

    def simulate(self, artifact: Kernel, tensors: object, *, progress: Any, **options: Any) -> Report:
        assert tensors is self.tensors
        progress(10, 1.0)
        self.asked |= options
        return Report(instructions=1234, seconds=0.5)


ONE = torch.ones(2, 3)
EXACT, BETWEEN, WRONG = (ONE, ONE, ONE), (ONE, ONE - 1, ONE + 1), (ONE.clone().index_fill_(1, torch.tensor([2]), 3.0), ONE, ONE)


@pytest.mark.parametrize(
    ("ends", "rows", "last"),
    [
        ([EXACT], ["6 6 pass"], f"PASS: {EQUAL}; no race found"),
        ([EXACT, BETWEEN], ["6 6 pass", "6 6 pass"], f"PASS: {BOUNDED}; no race found"),
        ([BETWEEN, EXACT], ["6 6 pass", "6 6 pass"], f"PASS: {BOUNDED}; no race found"),
        ([WRONG, EXACT], ["6 4 2 mismatches", "6 6 pass"], "FAIL"),
        ([EXACT, WRONG], ["6 6 pass", "6 4 2 mismatches"], "FAIL"),
    ],
)
def test_every_result_of_a_gemm_has_a_table(ends: list[Any], rows: list[str], last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, screen = GemmRun(monkeypatch, {f"result {place}": one for place, one in enumerate(ends)}), Screen()
    config: Any = choose_gemm(GemmProblem(128, 256))
    assert simulations.run_gemm(screen, config, [3, 4], SimulateOptions()) == (last != "FAIL")
    assert screen.lines[0] == "Problem" and "Configuration" in screen.lines and screen.lines[-1] == last
    tables = [place for place, line in enumerate(screen.lines) if line.endswith("against the reference")]
    assert [screen.lines[place] for place in tables] == [f"result {place} against the reference" for place in range(len(ends))]
    assert [screen.lines[place + 4] for place in tables] == [f"3,4 {row}" for row in rows]
    assert "1 0 0 1,234 0.5" in screen.lines
    options = {"counts": [3, 4], "data": 0, "exact": True, "k_blocks": config.most_k_blocks, "compared": True}
    assert run.asked == {**options, "launches": 1, "seed": 0, "race": True}


def choose_gemm(problem: GemmProblem) -> Any:
    return find_kernel("gemm").choose(problem, Target.typical("sm_90a", 4), 7)


@pytest.mark.parametrize(("accumulate", "launches"), [(False, 3), (True, 1)])
def test_a_gemm_runs_as_asked(accumulate: bool, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that adds to its results runs once, because the reference is of one launch."""
    run = GemmRun(monkeypatch, {"D": EXACT})
    config = choose_gemm(GemmProblem(128, 256, accumulate=accumulate, output="f32" if accumulate else "bf16"))
    given = SimulateOptions(seed=7, launches=3, no_race=True, random=True)
    screen = Screen()
    assert simulations.run_gemm(screen, config, [7], given)
    assert screen.lines[-1] == f"PASS: {EQUAL}"
    assert (run.asked["launches"], run.asked["seed"], run.asked["data"], run.asked["race"]) == (launches, 7, 7, False)
    assert run.asked["exact"] is run.asked["compared"] is False


@pytest.mark.parametrize("tokens", ["40", "40,40,40,40", "160,0,0,0"])
def test_a_gemm_is_chosen_for_all_rows_of_its_groups(tokens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(simulations, "run_gemm", lambda console, config, counts, given: ran.append((config, counts)) or True)
    fields = "n=512,k=256,kind=packed,num_groups=4"
    arguments = ["simulate", "--kernel", "gemm", "--arch", "sm_90a", "--fields", fields, "--tokens", tokens]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    ((config, counts),) = ran
    assert config == find_kernel("gemm").choose(GemmProblem(512, 256, "packed", 4), Target.typical("sm_90a", 4), 160)
    assert counts == (list(map(int, tokens.split(","))) if "," in tokens else [40] * 4)


@pytest.mark.parametrize(("tokens", "fields", "named"), [("8", "n=65536,k=65536", "--fields"), ("3000000", "n=128,k=128", "--tokens")])
def test_a_gemm_that_does_not_fit_is_refused(tokens: str, fields: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.cli.simulate.physical_memory", lambda: 1 << 30)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, ["simulate", "--kernel", "gemm", "--fields", fields, "--tokens", tokens, "--yes"]
    )
    assert result.exit_code == 2 and re.match(rf"error: {named} = .*: must be fewer: about .* of memory are needed", result.stderr)


# --- layers
def case(number: int) -> Any:
    """Of two ranks."""
    names = ("x", "x_sf", "topk_idx", "topk_weights")
    return SimpleNamespace(weights=f"weights {number}", **{name: [f"{name} {number}.{rank}" for rank in range(2)] for name in names})


class Layer:
    """A simulated layer: what it was made of, and what each launch was given."""

    made: tuple[Any, ...]
    given: list[Any]

    def __init__(self, artifacts: Any, weights: Any, **options: Any) -> None:
        options.pop("progress")(1, 1.0)
        Layer.made, Layer.given = ([one.config for one in artifacts], weights, options), []

    def load_weights(self, weights: Any) -> None:
        Layer.given.append(weights)

    def __call__(self, inputs: Any) -> Any:
        Layer.given.append(inputs)
        return f"y of {inputs[0][0]}", Report(instructions=len(Layer.given))


def rank(number: int, unequal: int, violations: int) -> RankComparison:
    return RankComparison(number, 3 - number, 1768, unequal, violations, 0.123456, 0.25)


@pytest.mark.parametrize(
    ("options", "second", "rows", "last"),
    [
        (
            {},
            [rank(0, 0, 0), rank(1, 0, 0)],
            ["1,768 0.123 exact pass", "1,768 0.123 exact pass"],
            f"PASS: {EQUAL}; no race found",
        ),
        (
            {"random": True, "no_race": True, "seed": 7},
            [rank(0, 3, 0), rank(1, 0, 0)],
            ["1,765 0.123 25.0% pass", "1,768 0.123 25.0% pass"],
            f"PASS: {BOUNDED}",
        ),
        (
            {"seed": 3},
            [rank(0, 5, 4), rank(1, 0, 0)],
            ["1,763 0.123 exact 4 mismatches", "1,768 0.123 exact pass"],
            "FAIL",
        ),
    ],
    ids=["equal", "within the bound", "wrong"],
)
def test_every_rank_of_every_launch_has_a_row(
    options: dict[str, Any], second: list[RankComparison], rows: list[str], last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second launch has data and weights of its own, on the same buffers."""
    config = choose(LAYER, Target.typical("sm_100a", 4), 3)
    monkeypatch.setattr(simulations, "SimulatedMoE", Layer)
    monkeypatch.setattr(simulations, "Inputs", lambda *tensors: tensors)
    monkeypatch.setattr(simulations, "draw", lambda console, problem, launches, given: [case(place) for place, _ in enumerate(launches)])
    found = {"y of x 0.0": [rank(0, 0, 0), rank(1, 0, 0)], "y of x 1.0": second}
    monkeypatch.setattr(simulations, "compare", lambda case, y: found[y])
    screen = Screen()
    assert simulations.run_layer(screen, [config], [(3, 2), (2, 3)], SimulateOptions(**options)) == (last != "FAIL")
    assert Layer.made == ([config], "weights 0", {"seed": options.get("seed", 0), "race": not options.get("no_race", False)})
    inputs = [[tuple(f"{name} {n}.{r}" for name in ("x", "x_sf", "topk_idx", "topk_weights")) for r in range(2)] for n in range(2)]
    assert Layer.given == [inputs[0], "weights 1", inputs[1]]
    exact = "25.0%" if options.get("random") else "exact"
    assert [line for line in screen.lines if " 1,768 " in line] == [
        *(f"1 {r} {3 - r} 1,768 1,768 0.123 {exact} pass" for r in range(2)),
        *(f"2 {r} {3 - r} 1,768 {row}" for r, row in enumerate(rows)),
    ]
    assert screen.lines[-1] == last


# --- halves of a layer
def test_parts_are_compared_bit_by_bit() -> None:
    """Zero and minus zero differ."""
    wanted = [torch.zeros(3, 4).bfloat16(), torch.ones(1, 4).bfloat16()]
    found = [one.clone() for one in wanted]
    found[0][0, 1], found[1][0, :2] = -0.0, 2.0
    assert compared(7, "a", 1, wanted, wanted) == (7, "a", 1, 4, 16, 0)
    assert compared(7, "a", 1, found, wanted) == (7, "a", 1, 4, 16, 3)


@pytest.mark.parametrize(
    ("unequal", "no_race", "last"),
    [(0, False, f"PASS: {EQUAL}; no race found"), (0, True, f"PASS: {EQUAL}"), (2, False, "FAIL")],
)
def test_both_kernels_have_a_row_for_each_rank(unequal: int, no_race: bool, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    crossed = {"dispatch": 12345, "combine": 6}

    def simulated(dispatch: Kernel, combine: Kernel, weights: Any, *, progress: Any, **options: Any) -> str:
        made.append((dispatch.config, combine.config, weights, options))
        return "ep"

    def launched(ep: str, case: Any, number: int, accumulate: Any) -> Any:
        made.append((ep, case.weights, number, accumulate))
        for kernel, count in crossed.items():
            parts = [(number, kernel, rank, 9, 1152, unequal * rank) for rank in range(2)]
            yield parts, Report(crossed=count)

    monkeypatch.setattr(simulations, "SimulatedEp", simulated)
    monkeypatch.setattr(simulations, "launch", launched)
    monkeypatch.setattr(simulations, "draw", lambda console, problem, launches, given: [case(place) for place, _ in enumerate(launches)])
    config, screen = choose(LAYER, Target.typical("sm_100a", 4), 3), Screen()
    given = SimulateOptions(seed=5, no_race=no_race)
    assert simulations.run_ep(screen, [config, config], [(3, 2), (2, 3)], given) == (not unequal)  # type: ignore[list-item]
    assert made[0] == (config, config, "weights 0", {"seed": 5, "race": not no_race})
    assert made[1:] == [("ep", "weights 0", 1, torch.float64), ("ep", "weights 1", 2, torch.float64)]
    second = f"1 9 1,152 1,150 {unequal} mismatches" if unequal else "1 9 1,152 1,152 pass"
    launches = [(number, kernel) for number in (1, 2) for kernel in crossed]
    rows = [f"{number} {kernel} {row}" for number, kernel in launches for row in ("0 9 1,152 1,152 pass", second)]
    assert [line for line in screen.lines if " 1,152 " in line] == rows
    moved = [f"Launch {number}: copies of {kernel} moved {crossed[kernel]:,} bytes between ranks." for number, kernel in launches]
    assert [line for line in screen.lines if line.startswith("Launch")] == moved and screen.lines[-1] == last


def test_data_that_rounds_are_added_as_hopper_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(simulations, "SimulatedEp", lambda *given, **options: None)
    monkeypatch.setattr(simulations, "launch", lambda ep, case, number, accumulate: asked.append(accumulate) or [])
    monkeypatch.setattr(simulations, "draw", lambda console, problem, launches, given: [case(0)])
    config: Any = choose(Problem(256, 128, 4, 2, 2, 5, recipe="fp8xfp8"), Target.typical("sm_90a", 4), 3)
    for given in (SimulateOptions(random=True), SimulateOptions()):
        assert simulations.run_ep(Screen(), [config, config], [(3, 2)], given)
    assert asked == ["hopper", torch.float64]


@pytest.mark.parametrize(("by", "counts"), [(0, [5, 7, 9]), (1, [7, 9, 5]), (2, [9, 5, 7]), (3, [5, 7, 9]), (7, [7, 9, 5])])
def test_later_launches_give_a_rank_anothers_tokens(by: int, counts: list[int]) -> None:
    assert rotate([5, 7, 9], by) == counts
