"""Damaged checkpoints are refused by the name of the tensor and of the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published_files import LAYER, Tensors, deepseek_v3, deepseek_v4, gpt_oss, qwen3_moe, write

from expert_reading import read_experts
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SM90
from megamoe_dsl.cases import random_weights
from megamoe_dsl.checkpoints import Checkpoint, CheckpointError, PublishedExperts, load_experts
from megamoe_dsl.checkpoints.experts import summarize
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, new_weights
from megamoe_dsl.runtime.buffers import RankBuffers

FP4 = Problem(256, 128, 4, 2, 1, 16)
FP8 = Problem(256, 128, 4, 2, 1, 16, recipe="fp8xfp8")
W3 = f"layers.{LAYER}.ffn.experts.2.w3"
DOWN = f"model.layers.{LAYER}.mlp.experts.1.down_proj"


def v4() -> Tensors:
    return deepseek_v4(random_weights(FP4, 0, 1))


def v3() -> Tensors:
    return deepseek_v3(random_weights(FP8, 0, 1))


def refused(folder: Path, problem: Problem, match: str, **options: bool) -> CheckpointError:
    with pytest.raises(CheckpointError, match=match) as caught:
        read_experts(problem, folder, LAYER, **options)
    return caught.value


@pytest.mark.parametrize(
    ("name", "tensor", "match"),
    [
        (f"{W3}.weight", torch.zeros(128, 64, dtype=torch.int8), r"shape \(128, 64\): must be \(128, 128\)"),
        (f"{W3}.scale", torch.zeros(128, 9, dtype=torch.uint8), r"shape \(128, 9\): must be \(128, 8\)"),
        (f"{W3}.scale", torch.zeros(128, 8), r"dtype F32: must be F8_E8M0 or U8"),
        (f"{W3}.weight", torch.zeros(128, 128, dtype=torch.bfloat16), r"dtype BF16: must be U8 or I8"),
    ],
)
def test_another_dtype_or_shape(tmp_path: Path, name: str, tensor: torch.Tensor, match: str) -> None:
    folder = write(tmp_path, {**v4(), name: tensor})
    error = refused(folder, FP4, match)
    with pytest.raises(CheckpointError, match=match) as seen:  # whoever looks at the headers alone sees it too
        summarize(Checkpoint(folder))
    assert seen.value.tensor == name
    assert error.tensor == name and error.expert == 2 and error.file is not None and error.file.parent == tmp_path
    assert str(error).startswith(f"{error.file}: {name}: ")


def test_a_missing_tensor(tmp_path: Path) -> None:
    tensors = v3()
    del tensors[f"{DOWN}.weight_scale_inv"]
    error = refused(write(tmp_path, tensors), FP8, "no such tensor")
    assert error.tensor == f"{DOWN}.weight_scale_inv" and error.expert == 1


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    folder = write(tmp_path, v4())
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    error = refused(folder, FP4, "truncated, or no safetensors file")
    assert error.file == file and error.tensor is not None


def test_an_index_that_names_a_missing_file(tmp_path: Path) -> None:
    folder = write(tmp_path, v4())
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = refused(folder, FP4, "no such file, though the index names it")
    assert error.file == folder / "model-00002-of-00002.safetensors" and error.tensor is not None
    with pytest.raises(CheckpointError, match="no such file, though the index names it"):
        summarize(Checkpoint(folder))


def test_an_index_that_names_the_wrong_file(tmp_path: Path) -> None:
    folder = write(tmp_path, v4())
    index = folder / "model.safetensors.index.json"
    found = json.loads(index.read_text())
    file = found["weight_map"][f"{W3}.scale"]
    found["weight_map"][f"{W3}.scale"] = next(other for other in found["weight_map"].values() if other != file)
    index.write_text(json.dumps(found))
    error = refused(folder, FP4, "not in this file, though the index says so")
    assert error.tensor == f"{W3}.scale" and error.file == folder / found["weight_map"][f"{W3}.scale"]


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}', "[]"])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path, v4())
    (folder / "model.safetensors.index.json").write_text(text)
    assert refused(folder, FP4, "no index of safetensors files").file == folder / "model.safetensors.index.json"


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "gone", FP4, "no such file or folder")
    refused(tmp_path, FP4, "a folder without")
    write(tmp_path, {"model.layers.3.mlp.gate.weight": torch.zeros(4, 4)})
    refused(tmp_path, FP4, r"layer 3 has experts in no published layout; looked for layers\.3\.ffn\.experts\.0\.w2\.weight, model")
    write(tmp_path, {f"layers.{LAYER}.ffn.experts.0.w2.weight": torch.zeros(4, 4).half()})
    refused(tmp_path, FP4, r"looked for layers\.3\.ffn\.experts\.0\.w2\.weight in F16, model")


def test_another_problem(tmp_path: Path) -> None:
    folder = write(tmp_path, v4())
    refused(folder, Problem(512, 128, 4, 2, 1, 16), "hidden = 256: must fill the problem's 512")
    refused(folder, Problem(128, 128, 4, 2, 1, 16), "hidden = 256: must fill the problem's 128")
    refused(folder, Problem(256, 256, 4, 2, 1, 16), "intermediate = 128: must fill the problem's 256")
    refused(folder, Problem(256, 128, 8, 2, 1, 16), "4 experts: must be the problem's 8")
    with pytest.raises(ProblemError, match="rank = 1"):
        read_experts(FP4, folder, LAYER, 1)
    refused(write(tmp_path / "v3", v3()), FP4, "which recipe fp8xfp4 cannot have")


def test_biases(tmp_path: Path) -> None:
    weights = random_weights(FP4, 0, 1)
    bias = f"model.layers.{LAYER}.mlp.experts.gate_up_proj_bias"
    folder = write(tmp_path, {**gpt_oss(weights), bias: torch.zeros(4, 256, dtype=torch.bfloat16)})
    assert refused(folder, FP4, "the layer has biases = False: must be True, or the bias").tensor == bias
    with pytest.raises(CheckpointError, match="or the bias be left out on purpose with ignore_biases"):
        PublishedExperts.of(folder, LAYER).check(FP4)
    assert torch.equal(read_experts(FP4, folder, LAYER, ignore_biases=True).fc1, weights.fc1)
    biased = replace(FP4, biases=True)
    assert "down_proj_bias" in str(refused(folder, biased, "no such tensor"))
    short = {f"model.layers.{LAYER}.mlp.experts.down_proj_bias": torch.zeros(4, 128)}
    folder = write(tmp_path / "short", {**gpt_oss(weights), bias: torch.zeros(4, 256), **short})
    refused(folder, biased, r"shape \(128,\): must be \(256,\)")
    for ignored in (False, True):
        message = "layout deepseek-v4 has no biases, and the layer has biases = True"
        refused(write(tmp_path / "v4", v4()), biased, message, ignore_biases=ignored)


@pytest.mark.parametrize(("scales", "row", "name"), [("fc1_sf", 7, "w1"), ("fc1_sf", 135, "w3"), ("fc2_sf", 7, "w2")])
def test_fp4_that_is_no_fp8(tmp_path: Path, scales: str, row: int, name: str) -> None:
    """Scales 2^20 apart in one block of 128 x 128: refused, not rounded."""
    weights = random_weights(FP4, 0, 1)
    wide = getattr(weights, scales).clone()
    wide[1, row, 1] = wide[1, row // 128 * 128 :][:128, :4].amax() + 20
    error = refused(write(tmp_path, deepseek_v4(replace(weights, **{scales: wide}))), FP8, r"must be asked for|beside", expand=True)
    assert error.expert == 1 and error.tensor == f"layers.{LAYER}.ffn.experts.1.{name}.weight" and "keep the weights in E2M1" in str(error)


def test_a_device_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ProblemError, match="must be a CUDA device, and torch finds none here"):
        PublishedExperts.of(write(tmp_path, v4()), LAYER).read(0, FP4, torch.device("cuda"))


def test_what_a_kernel_cannot_have(tmp_path: Path) -> None:
    """A layer that refuses an expert's values: the expert is named."""

    class Picky:
        problem, device = FP4, torch.device("cpu")

        def load_expert(self, index: int, weights: ExpertWeights) -> None:
            if index == 2:
                raise ValueError("fc1[0]: scales too far apart")

    with pytest.raises(CheckpointError, match=r"has no place in the layer: fc1\[0\]: scales too far apart") as caught:
        load_experts(Picky(), write(tmp_path, v4()), LAYER)
    assert caught.value.expert == 2 and caught.value.tensor == f"layers.{LAYER}.ffn.experts.2.w1.weight"


def test_scales_that_hopper_cannot_apply_exactly(tmp_path: Path) -> None:
    """Two of a row's scales within 128 channels are 2^30 apart: packed tiles have no place for them."""
    problem = replace(FP4, recipe="fp8xmxfp4")
    weights = random_weights(problem, 0, 1)
    weights.fc2[3, 7], weights.fc2_sf[3, 7, :2] = 0x11, torch.tensor([90, 120], dtype=torch.uint8)
    buffers = RankBuffers(choose(problem, Target.typical("sm_90a", 4), 16), new_weights(problem, SM90, "cpu"))
    with pytest.raises(CheckpointError, match=r"has no place in the layer: .*scales 2\^30 apart") as caught:
        load_experts(buffers, write(tmp_path, deepseek_v4(weights)), LAYER)
    assert caught.value.expert == 3 and caught.value.file is not None


def test_bf16_with_a_nan(tmp_path: Path) -> None:
    fc1, fc2 = torch.randn(4, 256, 256).bfloat16(), torch.randn(4, 256, 128).bfloat16()
    fc2[3, 0, 0] = torch.nan
    error = refused(write(tmp_path, qwen3_moe(fc1, fc2)), FP8, "must be finite")
    assert error.expert == 3 and error.tensor == f"model.layers.{LAYER}.mlp.experts.3.down_proj.weight"


def test_a_stacked_tensor_of_another_shape(tmp_path: Path) -> None:
    tensors = gpt_oss(random_weights(FP4, 0, 1))
    name = f"model.layers.{LAYER}.mlp.experts.gate_up_proj_scales"
    folder = write(tmp_path, {**tensors, name: tensors[name][:3]})
    assert refused(folder, FP4, r"shape \(3, 256, 8\): must be \(4, 256, 8\)").tensor == name
    assert PublishedExperts.of(folder, LAYER).num_experts == 4
