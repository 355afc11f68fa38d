"""Checkpoints that somebody else prepared: an index stays in its folder, nothing hangs, and scales that no quantization gives are named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from published_files import LAYER, deepseek_v3, deepseek_v4, gpt_oss, write

from expert_reading import read_experts
from megamoe_dsl.cases import random_weights
from megamoe_dsl.checkpoints import Checkpoint, CheckpointError, find_layers
from megamoe_dsl.checkpoints.experts import summarize
from megamoe_dsl.problem import Problem

FP4 = Problem(256, 128, 4, 2, 1, 16)
FP8 = Problem(256, 128, 4, 2, 1, 16, recipe="fp8xfp8")
BIASED = Problem(256, 128, 4, 2, 1, 16, biases=True)
W3 = f"layers.{LAYER}.ffn.experts.2.w3"
DOWN = f"model.layers.{LAYER}.mlp.experts.1.down_proj.weight_scale_inv"
INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "checkpoint", deepseek_v4(random_weights(FP4, 0, 1)))


def refused(path: Path, match: str, problem: Problem = FP4) -> CheckpointError:
    with pytest.raises(CheckpointError, match=match) as caught:
        read_experts(problem, path, LAYER)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 5000
    return caught.value


def send(folder: Path, file: str) -> None:
    """Makes the index say that `W3`'s scales are in that file."""
    index = folder / INDEX
    found = json.loads(index.read_text())
    found["weight_map"][f"{W3}.scale"] = file
    index.write_text(json.dumps(found))


@pytest.mark.parametrize("file", ["../other.safetensors", "sub/../../other.safetensors", "{absolute}", "other\n.safetensors"])
def test_an_index_stays_in_its_folder(folder: Path, tmp_path: Path, file: str) -> None:
    other = tmp_path / "other.safetensors"
    shutil.copy(folder / SHARD, other)
    send(folder, file.format(absolute=other))
    error = refused(folder, "must lie in the index's folder")
    assert error.file == folder / INDEX and error.tensor == f"{W3}.scale"


def test_a_link_stays_in_the_folder_too(folder: Path, tmp_path: Path) -> None:
    """But for those of a Hugging Face cache, whose snapshots are links to blobs."""
    want = read_experts(FP4, folder, LAYER)
    outside = folder.with_name(f"{folder.name}-old")
    outside.mkdir()
    shutil.move(folder / SHARD, outside / SHARD)
    (folder / SHARD).symlink_to(outside / SHARD)
    assert refused(folder, "must stay in the checkpoint's folder").file == folder / SHARD
    blobs, snapshot = tmp_path / "model" / "blobs", tmp_path / "model" / "snapshots" / "main"
    for place in (blobs, snapshot):
        place.mkdir(parents=True)
    for file in folder.iterdir():
        shutil.copy(file, blobs / f"{file.name}-blob")
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}-blob")
    assert torch.equal(read_experts(FP4, snapshot, LAYER).fc1, want.fc1)
    shutil.copy(blobs / f"{SHARD}-blob", tmp_path / "model" / "blobs-old")
    (snapshot / SHARD).unlink()
    (snapshot / SHARD).symlink_to("../../blobs-old")
    assert refused(snapshot, "must stay in the checkpoint's folder").file == snapshot / SHARD
    (folder / SHARD).unlink()
    shutil.move(folder / INDEX, outside / INDEX)
    (folder / INDEX).symlink_to(outside / INDEX)
    assert refused(folder, "must stay in the checkpoint's folder").file == folder / INDEX
    (folder / INDEX).unlink()
    shutil.move(outside / INDEX, folder / INDEX)
    shutil.copy(outside / SHARD, folder / "elsewhere")
    (folder / SHARD).symlink_to("elsewhere")
    assert torch.equal(read_experts(FP4, folder, LAYER).fc1, want.fc1)


def test_a_shard_that_is_no_regular_file(folder: Path) -> None:
    (folder / SHARD).unlink()
    os.mkfifo(folder / SHARD)
    assert refused(folder, "a named pipe: must be a regular file").file == folder / SHARD
    (folder / INDEX).unlink()
    refused(folder, "a named pipe: must be a regular file")
    refused(folder / SHARD, "a named pipe: must be a regular file")


def test_names_that_are_too_long(folder: Path) -> None:
    send(folder, "a" * 5000)
    refused(folder, "File name too long|no such file")
    refused(folder / ("a" * 5000), "File name too long")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"weight_map":' * 50_000, "nested too deeply"),
        ('{"weight_map": {"a": 3}}', "no weight_map of names to files"),
        ('{"weight_map": ["a"]}', "no weight_map of names to files"),
    ],
)
def test_an_index_that_is_none(folder: Path, text: str, match: str) -> None:
    (folder / INDEX).write_text(text)
    refused(folder, match)


def test_an_index_that_is_a_pipe(folder: Path) -> None:
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)
    refused(folder, "no index of safetensors files: a named pipe")


def test_layers_of_absurd_numbers_are_none(tmp_path: Path) -> None:
    names = [f"layers.{number}.ffn.experts.0.w2.weight" for number in ("9" * 5000, "007", "³", "12")]
    assert find_layers(Checkpoint(write(tmp_path, {name: torch.zeros(1) for name in names}))) == [12]


def test_experts_of_no_bytes(tmp_path: Path) -> None:
    """Shapes with a zero may claim any number of experts."""
    stem = f"model.layers.{LAYER}.mlp.experts.down_proj"
    shapes = {f"{stem}_blocks": (1 << 40, 0, 4, 16), f"{stem}_scales": (1 << 40, 0, 4)}
    folder = write(tmp_path, {name: torch.zeros(shape, dtype=torch.uint8) for name, shape in shapes.items()})
    with pytest.raises(CheckpointError, match=r"shape .*: must be \[rows, K\]"):
        summarize(Checkpoint(folder))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0])
def test_a_scale_that_no_quantization_gives(tmp_path: Path, value: float) -> None:
    tensors = deepseek_v3(random_weights(FP8, 0, 1))
    tensors[DOWN] = tensors[DOWN].clone()
    tensors[DOWN][1, 0] = value
    error = refused(write(tmp_path, tensors), rf"scale {value}: must be finite and not negative", FP8)
    assert error.tensor == DOWN and error.expert == 1


def test_a_scale_of_zero_is_one(tmp_path: Path) -> None:
    """Of a block of zeros."""
    tensors = deepseek_v3(random_weights(FP8, 0, 1))
    tensors[DOWN] = torch.zeros_like(tensors[DOWN])
    assert bool((read_experts(FP8, write(tmp_path, tensors), LAYER).fc2_sf[1] == 0).all())


def test_the_nan_of_ue8m0(tmp_path: Path) -> None:
    weights = random_weights(FP4, 0, 1)
    weights.fc2_sf[3, 255, 3] = 254
    assert read_experts(FP4, write(tmp_path / "large", deepseek_v4(weights)), LAYER).fc2_sf[3, 255, 3] == 254
    weights.fc2_sf[3, 255, 3] = 255
    error = refused(write(tmp_path / "v4", deepseek_v4(weights)), "scale 255: must be 0 to 254")
    assert error.tensor == f"layers.{LAYER}.ffn.experts.3.w2.scale" and error.expert == 3
    assert refused(write(tmp_path / "oss", gpt_oss(weights)), "scale 255: must be 0 to 254").expert == 3


def test_a_bias_that_is_no_number(tmp_path: Path) -> None:
    stem = f"model.layers.{LAYER}.mlp.experts"
    biases = {f"{stem}.gate_up_proj_bias": torch.zeros(4, 256), f"{stem}.down_proj_bias": torch.zeros(4, 256)}
    biases[f"{stem}.down_proj_bias"][2, 9] = float("inf")
    error = refused(write(tmp_path, {**gpt_oss(random_weights(FP4, 0, 1)), **biases}), "a bias is infinite or NaN", BIASED)
    assert error.tensor == f"{stem}.down_proj_bias" and error.expert == 2
