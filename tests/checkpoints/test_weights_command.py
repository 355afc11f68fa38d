"""`megamoe weights inspect` and `convert`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from published_files import LAYER, deepseek_v4, gpt_oss, qwen3_moe, write
from rich.console import Console
from typer.testing import CliRunner

from expert_reading import read_experts
from megamoe_dsl.cases import random_weights
from megamoe_dsl.checkpoints.experts import LayerSummary
from megamoe_dsl.checkpoints.write import convert_checkpoint
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.weights import parse_layers, print_summary
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import WEIGHT_NAMES, dequantize_e2m1, dequantize_weight_e4m3, quantize_weight_e4m3

FP4 = Problem(256, 128, 4, 2, 2, 16)
FP8 = Problem(256, 128, 4, 2, 2, 16, recipe="fp8xfp8")
WHOLE = Problem(256, 128, 4, 2, 1, 16)
runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "source", deepseek_v4(random_weights(WHOLE, 0, 1)))


def test_inspect(source: Path) -> None:
    result = runner.invoke(app, ["weights", "inspect", str(source)])
    assert result.exit_code == 0, result.output
    assert "deepseek-v4" in result.output and "256" in result.output
    found = json.loads(runner.invoke(app, ["weights", "inspect", str(source), "--json"]).output)
    assert [(one["layer"], one["layout"], one["num_experts"], one["hidden"], one["intermediate"]) for one in found] == [
        (LAYER, "deepseek-v4", 4, 256, 128)
    ]
    assert found[0]["num_bytes"] == 4 * 3 * 256 * 128 * 17 // 32
    assert found[0]["files"] == [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]


def test_layers_that_are_alike_share_a_row(tmp_path: Path) -> None:
    tensors = gpt_oss(random_weights(WHOLE, 0, 1))
    layers = {name.replace(f"layers.{LAYER}.", f"layers.{n}."): tensor for name, tensor in tensors.items() for n in (3, 4, 5, 9)}
    rows = runner.invoke(app, ["weights", "inspect", str(write(tmp_path, layers))]).output
    assert "3 to 5" in rows and rows.count("gpt-oss") == 2
    found = json.loads(runner.invoke(app, ["weights", "inspect", str(tmp_path), "--json"]).output)
    assert {one["num_bytes"] for one in found} == {4 * 3 * 256 * 128 * 17 // 32}


def test_layers_that_differ_have_rows_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    first = LayerSummary(3, "gpt-oss", 4, 256, 128, 1, ("one",))
    changes: list[dict[str, Any]] = [{"layout": "qwen3-moe"}, {"num_experts": 8}, {"hidden": 512}, {"intermediate": 256}]
    each = [replace(first, **one) for change in changes for one in ({}, change)]
    print_summary(Console(width=200), [replace(one, layer=number) for number, one in enumerate(each)])
    shown = capsys.readouterr().out
    assert " to " not in shown and shown.count("0.000") == len(each)


def test_a_row_is_of_layers_in_a_row_with_the_size_of_one_and_the_files_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    layers = [(0, ("a", "b")), (1, ("b",)), (2, ("c", "a")), (5, ("d",)), (7, ("d",)), (8, ("e", "d"))]
    print_summary(Console(width=200), [LayerSummary(n, "gpt-oss", 4, 256, 128, 3 << 29, files) for n, files in layers])
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if "gpt-oss" in line]
    shape = "gpt-oss 4 256 128 1.500"
    assert rows == [f"0 to 2 {shape} 3", f"5 {shape} 1", f"7 to 8 {shape} 2"]


def test_convert_fp4_to_fp8(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    asked = ["weights", "convert", str(source), str(folder), "--recipe", "fp8xfp8"]
    refused = runner.invoke(app, asked)
    assert refused.exit_code == 2 and "must be asked for with expand" in refused.output
    done = runner.invoke(app, [*asked, "--expand"])
    assert done.exit_code == 0, done.output
    assert "1 files in" in done.output
    for rank in range(2):
        found, want = read_experts(FP8, folder, LAYER, rank), read_experts(FP4, source, LAYER, rank)
        assert torch.equal(dequantize_weight_e4m3(found.fc1, found.fc1_sf), dequantize_e2m1(want.fc1, want.fc1_sf))
    shown = runner.invoke(app, ["weights", "inspect", str(folder)])
    assert "megamoe-e4m3" in shown.output


def test_convert_goes_on_where_it_was(tmp_path: Path) -> None:
    fc1, fc2 = torch.randn(4, 256, 256).bfloat16(), torch.randn(4, 256, 128).bfloat16()
    source, folder = write(tmp_path / "bf16", qwen3_moe(fc1, fc2)), tmp_path / "converted"
    files = convert_checkpoint(source, folder, "fp8xfp8", file_bytes=1)
    assert [file.name for file in files] == [f"layer-003-experts-{e:05d}-{e:05d}.safetensors" for e in range(4)]
    kept = files[0].stat().st_mtime_ns
    files[2].write_bytes(files[2].read_bytes()[:-8])
    files[3].unlink()
    convert_checkpoint(source, folder, "fp8xfp8", file_bytes=1)
    assert files[0].stat().st_mtime_ns == kept
    found = read_experts(Problem(256, 128, 4, 2, 1, 16, recipe="fp8xfp8"), folder, LAYER)
    want = (*quantize_weight_e4m3(fc1), *quantize_weight_e4m3(fc2))
    assert all(torch.equal(getattr(found, n).view(torch.uint8), t.view(torch.uint8)) for n, t in zip(WEIGHT_NAMES, want, strict=True))
    convert_checkpoint(source, folder, "fp8xfp4", file_bytes=1)  # the same names, another recipe: made again
    assert read_experts(WHOLE, folder, LAYER).fc1.dtype == torch.uint8
    assert not list(folder.glob(".*"))


def test_experts_are_converted_where_asked(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("megamoe_dsl.cuda_device.require_usable", lambda device, field="": torch.device(device))
    monkeypatch.setattr("megamoe_dsl.checkpoints.write.convert_checkpoint", lambda *given, **options: asked.append(options["device"]) or [])
    result = runner.invoke(app, ["weights", "convert", str(source), str(tmp_path / "out"), "--recipe", "fp8xfp4", "--device", "cuda:1"])
    assert result.exit_code == 0 and asked == [torch.device("cuda:1")], result.output


def test_biases_are_left_out_on_purpose(tmp_path: Path) -> None:
    bias = f"model.layers.{LAYER}.mlp.experts.gate_up_proj_bias"
    source = write(tmp_path / "source", {**gpt_oss(random_weights(WHOLE, 0, 1)), bias: torch.zeros(4, 256)})
    asked = ["weights", "convert", str(source), str(tmp_path / "converted"), "--recipe", "fp8xfp4"]
    refused = runner.invoke(app, asked)
    assert refused.exit_code == 2 and "leave it out with ignore_biases (--ignore-biases)" in refused.output
    assert runner.invoke(app, [*asked, "--ignore-biases"]).exit_code == 0


def test_layers_of_a_range() -> None:
    assert parse_layers("3-5,8,0,9-9") == [3, 4, 5, 8, 0, 9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "{gone}"], "no such file or folder"),
        (["inspect", "{empty}"], "has no experts in a published layout"),
        (["convert", "{source}", "{out}", "--recipe", "fp8"], "recipe = 'fp8': must be one of"),
        (["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--layers", "3-"], "--layers = '3-': must be numbers up to 9999"),
        (["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--layers", "7"], "layer 7 has experts in no published layout"),
        (["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--device", "gpu"], "--device = 'gpu': must be cpu, cuda"),
        (["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--device", "cuda:1x"], "--device = 'cuda:1x': must be cpu, cuda"),
        (["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--device", "meta"], "--device = 'meta': must be cpu, cuda"),
        (
            ["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--device", "cuda:99"],
            "--device = 'cuda:99': must be ",
        ),
        (
            ["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--layers", "5-3"],
            "--layers = '5-3': must be numbers up to 9999, and ranges",
        ),
        (
            ["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--layers", "0-99999999999"],
            "--layers = '0-99999999999': must be numbers",
        ),
        (["convert", "{source}", "{out}", "--recipe", "fp8xfp4", "--layers", "\u0663"], "must be numbers up to 9999"),
        (["convert", "{source}", "{source}", "--recipe", "fp8xfp4"], "the folder of the checkpoint itself"),
        (
            ["convert", "{source}", "{out}", "--recipe", "bf16xbf16"],
            "which recipe bf16xbf16 cannot have: must be one of fp8xfp4, mxf4xmxf4",
        ),
    ],
)
def test_bad_input_is_one_line(source: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    empty = write(tmp_path / "empty", {})
    places = {"source": source, "gone": tmp_path / "gone", "empty": empty, "out": tmp_path / "out"}
    result = runner.invoke(app, ["weights", *(one.format(**places) for one in arguments)])
    assert result.exit_code == 2 and message in result.output and result.output.count("\n") == 1
    assert "Format(" not in result.output
