"""`megamoe simulate` of the expert-parallel kernels: right and wrong results, and options that they have not."""

import re

import pytest
import torch
from typer.testing import CliRunner

from megamoe_dsl.cli import simulations
from megamoe_dsl.cli.app import app
from sweep import rarely, sample

SHAPE = ["--hidden", "256", "--intermediate", "128", "--experts", "4", "--topk", "2", "--sms", "2", "--tokens", "3,0"]
RUN = ["simulate", "--kernel", "dispatch_grouped_gemm", *SHAPE]
TINY = [*RUN, "--arch", "sm_90a", "--block-m", "64"]
PAIRS = [*RUN, "--arch", "sm_100a"]
UNSCALED = [*TINY, "--recipe", "bf16xbf16", "--random"]
runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


@sample("sm_90a")
@pytest.mark.parametrize("given", [TINY, PAIRS, rarely(UNSCALED)], ids=["sm_90a", "sm_100a", "bf16"])
def test_both_kernels_have_the_references_bits(given: list[str]) -> None:
    result = runner.invoke(app, [*given, "--launches", "2", "--mask", "0.2"])
    assert result.exit_code == 0, result.output
    assert "PASS: every element equals the reference bit for bit; no race found" in result.output
    assert re.findall(r"(\d) +(dispatch|combine) +(\d) .* pass", result.output) == [
        (launch, kernel, rank) for launch in "12" for kernel in ("dispatch", "combine") for rank in "01"
    ]
    assert len(re.findall(r"copies of (?:dispatch|combine) moved [\d,]+ bytes between ranks", result.output)) == 4


def test_a_wrong_element_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: object) -> list[torch.Tensor]:
        ys = combined(*arguments)
        ys[0][0, 0] += 1
        return ys

    combined = simulations.combined
    monkeypatch.setattr(simulations, "combined", wrong)
    result = runner.invoke(app, [*TINY, "--no-race", "--random"])
    assert result.exit_code == 1
    assert re.findall(r"(\w+) +0 .* 1 mismatches", result.output) == ["combine"] and result.output.rstrip().endswith("FAIL")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clamp", "3"], "--clamp = 3.0: must be left out with --kernel dispatch_grouped_gemm"),
        (["--activation", "swigluoai"], "--activation = 'swigluoai': must be left out with"),
        (["--biases"], "--biases = True: must be left out with"),
        (["--lookahead", "2"], "lookahead = 2: must be left out with --kernel dispatch_grouped_gemm for sm_90a"),
        (["--block-m", "32"], "--block-m = 32: must be one of [64, 128]"),
        (["--combine", "e4m3"], "combine = 'e4m3': must be bf16"),
    ],
)
def test_options_that_they_have_not_are_named(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, [*TINY, *arguments])
    assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output


def test_data_that_rounds_is_left_to_hopper() -> None:
    """Nobody has published the order in which the tensor core of SM100 adds."""
    result = runner.invoke(app, [*PAIRS, "--random"])
    assert result.exit_code == 2
    assert "--random = True: must be left out with --recipe fp8xfp4: the bits of its sums are not specified" in " ".join(
        result.output.split()
    )


def test_data_are_drawn_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of every launch by a seed of its own."""
    asked: list[tuple[object, ...]] = []

    def drawn(problem: object, counts: object, seed: int, **given: object) -> None:
        asked.append((counts, seed, {**given, "progress": 0}))

    monkeypatch.setattr(simulations, "random_case", drawn)
    given = simulations.SimulateOptions(mask=0.2, skew=True, random=True, seed=5)
    simulations.draw(simulations.Console(quiet=True), None, [(3, 0), (0, 3)], given)
    options = {"mask": 0.2, "skew": True, "exact": False, "progress": 0}
    assert asked == [((3, 0), 5, options), ((0, 3), 6, options)]
