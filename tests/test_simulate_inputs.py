"""`megamoe simulate --kernel pre_dispatch`: right and wrong bytes, and options that it has not."""

import re
from dataclasses import replace

import cutlass.cute as cute
import pytest
import torch
from typer.testing import CliRunner

from megamoe_dsl.cli import simulations
from megamoe_dsl.cli.app import app
from megamoe_dsl.quant import MICRO_SCALING, quantize_e4m3
from megamoe_dsl.recipe import E4M3

SMALL = ["simulate", "--kernel", "pre_dispatch", "--hidden", "256", "--intermediate", "128", "--experts", "4", "--topk", "2"]
TINY = [*SMALL, "--sms", "2", "--tokens", "3,0"]
runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize(
    ("arch", "recipe"), [("sm_100a", []), ("sm_90a", []), ("sm_100a", ["--recipe", "mxf4xmxf4"])], ids=["sm_100a", "sm_90a", "mxf4xmxf4"]
)
def test_the_symmetric_buffers_bytes_are_those_of_quant(arch: str, recipe: list[str]) -> None:
    result = runner.invoke(app, [*TINY, *recipe, "--arch", arch, "--mask", "0.3", "--skew"])
    assert result.exit_code == 0, result.output
    assert f"compiled            for {arch}" in result.output
    assert "PASS: every byte of the symmetric buffer is as quant makes it; no race found" in result.output
    for field in ("x", "x_sf", "topk_idx", "topk_weights", "all else"):
        assert len(re.findall(rf" {field} .* pass", result.output)) == 2


def test_wrong_bytes_are_counted_in_their_field_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, **_: bool) -> tuple[torch.Tensor, torch.Tensor]:
        codes, sf = quantize_e4m3(x)
        sf[:1, :5] += 1
        return codes, sf

    monkeypatch.setitem(MICRO_SCALING, E4M3, replace(MICRO_SCALING[E4M3], quantize=wrong))
    result = runner.invoke(app, [*TINY, "--no-race", "--arch", "sm_100a"])
    assert result.exit_code == 1
    assert re.findall(r"0 +3 +(\w+) .* (\d+) mismatches", result.output) == [("x_sf", "5")]
    assert result.output.count("mismatches") == 1 and result.output.rstrip().endswith("FAIL")
    assert "not looked for" in result.output


def test_a_byte_outside_of_the_fields_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulations, "expected_buffer", lambda *_, right=simulations.expected_buffer: spoil(right(*_)))
    result = runner.invoke(app, [*TINY, "--no-race"])
    assert result.exit_code == 1
    assert len(re.findall(r"all else .* 1 mismatches", result.output)) == 2


def spoil(sym: torch.Tensor) -> torch.Tensor:
    """Its first byte, which is the workspace's, is another."""
    sym[0] ^= 1
    return sym


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--launches", "1"], "--launches = 1: must be left out with --kernel pre_dispatch"),
        (["--block-m", "32"], "--block-m = 32: must be left out with --kernel pre_dispatch"),
        (["--block-k", "128"], "--block-k = 128: must be left out with --kernel pre_dispatch"),
        (["--lookahead", "1"], "--lookahead = 1: must be left out with --kernel pre_dispatch"),
        (["--stages", "3"], "--stages = 3: must be left out with --kernel pre_dispatch"),
        (["--clamp", "10"], "--clamp = 10.0: must be left out with --kernel pre_dispatch"),
        (["--random"], "--random = True: must be left out with --kernel pre_dispatch"),
        (["--kernel", "combine"], "--kernel = 'combine': must be one of mega_moe, pre_dispatch"),
        (["--mask", "2"], "--mask = 2.0: must be between 0 and 1"),
        (["--sms", "0"], "--sms = 0: must be positive"),
        (["--sms", "513"], "--sms = 513: must be less, or given with --no-race"),
        (["--tokens", "1000000000"], "--tokens = 1000000000: must be"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cute, "compile", None)  # all of it is known before anything is compiled
    result = runner.invoke(app, [*SMALL, *arguments])
    assert result.exit_code == 2
    assert f"error: {message}" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_a_kernel_without_a_simulation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.cli.simulate.SIMULATED", ("mega_moe",))
    result = runner.invoke(app, SMALL)
    assert result.exit_code == 2
    assert "error: --kernel = 'pre_dispatch': must be one that this command simulates: mega_moe" in result.stderr
