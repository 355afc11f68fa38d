"""`megamoe layout`: every picture of both architectures, presets and own shapes, and errors of one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megamoe_dsl.cli.app import app
from megamoe_dsl.pictures import PICTURES
from megamoe_dsl.presets import preset

RESULTS = Path(__file__).parents[1] / "bench" / "results"
SHAPE = ["--hidden", "512", "--intermediate", "512", "--experts", "8", "--topk", "2", "--sms", "4"]
ONLY_SM100 = {"tmem", "scales"}


def layout(*arguments, **runner):
    return CliRunner(**runner).invoke(app, ["layout", *arguments])


@pytest.mark.parametrize("shape", [["--preset", "pro"], SHAPE], ids=["preset", "shape"])
@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize("what", PICTURES)
def test_every_picture_of_both_architectures(what, arch, shape):
    result = layout(what, "--arch", arch, "--tokens", "64", *shape)
    if arch == "sm_90a" and what in ONLY_SM100:
        assert result.exit_code == 2 and f"error: --arch = 'sm_90a': must be sm_100a for a picture of {what}: " in result.output
    else:
        assert result.exit_code == 0, result.output


def test_results_of_eight_bits():
    """512 channels: codes, four scales, and what fills the line."""
    result = layout("symmetric", *SHAPE, "--tokens", "64", "--combine", "e4m3")
    assert result.exit_code == 0 and "u8 [2, 64, 640]" in result.output


def test_a_picture_is_of_the_layer_that_was_asked_for(monkeypatch):
    """A shape of one's own takes nothing from a preset."""
    seen = []
    monkeypatch.setitem(PICTURES, "smem", lambda config, tokens: seen.append((config, tokens)) or PICTURES["swizzle"](config, tokens))
    assert layout("smem", *SHAPE[:-2], "--sms", "6", "--tokens", "3").exit_code == 0
    assert layout("smem").exit_code == 0
    (own, three), (flash, usual) = seen
    assert (own.num_sms, own.problem.num_ranks, own.problem.max_tokens_per_rank, three) == (6, 1, 3, 3)
    assert (flash.num_sms, flash.problem, usual) == (148, preset("flash").problem(128), 128)


def test_a_file(tmp_path):
    file = tmp_path / "smem[b].svg"
    result = layout("smem", *SHAPE, "--svg", str(file))
    assert result.exit_code == 0 and file.read_text().startswith("<?xml")
    assert result.output == f"Shared memory over time: {file}\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_without_blocks_is_one_line(encoding):
    result = layout("schedule", charset=encoding)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == f"error: encoding = {encoding!r}: must be one with '\\u2588'; set PYTHONIOENCODING=utf-8\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smem", "--preset", "huge"], "one of flash, pro"),
        (["smem", "--hidden", "100", "--intermediate", "512", "--experts", "8", "--topk", "2"], "hidden = 100"),
        (["smem", "--block-m", "17"], "--block-m = 17"),
        (["smem", "--block-m", "64", "--arch", "sm_90a"], "--block-m = 64"),
        (["smem", "--arch", "sm_80"], "arch = 'sm_80': must be one of sm_100a, sm_90a"),
        (["pool", "--svg", "missing/folder/x.svg"], "missing/folder"),
        (["nothing"], "is not one of"),
        (["smem", "--tokens", "0"], "--tokens = 0: must be"),
        (["smem", "--trace", "x.json"], "--trace = 'smem': must be given with timeline only"),
        (["timeline"], "--trace = None: must be given with timeline"),
        (["timeline", "--trace", "missing.json"], "missing.json"),
        (["timeline", "--trace", "missing.json", "--hidden", "512"], "--hidden = 512: must be left out with --trace"),
        (["timeline", "--trace", "missing.json", "--stages", "4"], "--stages = 4: must be left out with --trace"),
    ],
)
def test_errors_are_one_line(arguments, message):
    result = layout(*arguments)
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output


def test_a_trace_is_of_the_point_that_was_asked_for():
    asked = ["--preset", "pro", "--tokens", "9", "--ranks", "4"]
    result = layout("timeline", "--trace", str(next(RESULTS.glob("mega_moe_sm90-trace-*.json"))), *asked)
    assert "one point with --preset pro --tokens 9 --ranks 4" in " ".join(result.output.split())


def test_a_trace_with_one_point_needs_no_other_option(tmp_path):
    record = json.loads(next(RESULTS.glob("mega_moe_sm90-trace-*.json")).read_text())
    file = tmp_path / "one.json"
    file.write_text(json.dumps({**record, "records": record["records"][-1:]}))
    result = layout("timeline", "--trace", str(file))
    assert result.exit_code == 0 and "Measured on" in result.output
