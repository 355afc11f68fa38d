"""Where a conversion writes: never over the checkpoint's own files, never out of an index what another run put there."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from published_files import LAYER, Tensors, deepseek_v4, gpt_oss, qwen3_moe, write
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from expert_reading import read_experts
from megamoe_dsl.cases import random_weights
from megamoe_dsl.checkpoints import Checkpoint, CheckpointError, PublishedExperts, find_layers
from megamoe_dsl.checkpoints.write import convert_checkpoint
from megamoe_dsl.problem import Problem

WHOLE = Problem(256, 128, 4, 2, 1, 16)
INDEX = "model.safetensors.index.json"


def layers_of(*layers: int, seed: int = 0) -> Tensors:
    return {
        name.replace(f"layers.{LAYER}.", f"layers.{layer}."): tensor
        for layer in layers
        for name, tensor in deepseek_v4(random_weights(WHOLE, 0, layer + seed)).items()
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "source", layers_of(3, 4))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_checkpoint_is_not_converted_into_itself(source: Path, tmp_path: Path) -> None:
    before, link = contents(source), tmp_path / "link"
    link.symlink_to(source)
    single = source / "model-00001-of-00002.safetensors"
    for path, folder in ((source, source), (source, link), (link, source), (source, source / ".." / "source"), (single, source)):
        with pytest.raises(CheckpointError, match="the folder of the checkpoint itself: must be another one"):
            convert_checkpoint(path, folder, "fp8xfp4")
    assert contents(source) == before


@pytest.mark.parametrize("file", ["model.safetensors", "other.safetensors.index.json"])
def test_another_checkpoint_is_not_hidden(source: Path, tmp_path: Path, file: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / file).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=f"holds {file}, a file of another checkpoint"):
        convert_checkpoint(source, other, "fp8xfp4")
    assert contents(other) == {file: b"{}"}


def test_another_checkpoints_index_is_not_replaced(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / INDEX).write_text(json.dumps({"weight_map": {"embed": "model-1.safetensors"}}))
    before = contents(other)
    with pytest.raises(CheckpointError, match=r"embed: names model-1\.safetensors, a file of another checkpoint"):
        convert_checkpoint(source, other, "fp8xfp4")
    assert contents(other) == before


def test_layers_one_after_another(source: Path, tmp_path: Path) -> None:
    """In any order, again too; a run of the same layer puts its files in place of the earlier ones."""
    folder = tmp_path / "converted"
    convert_checkpoint(source, folder, "fp8xfp4", layers=[3], file_bytes=1)
    convert_checkpoint(source, folder, "fp8xfp4", layers=[4])
    assert len(convert_checkpoint(source, folder, "fp8xfp4", layers=[3, 3])) == 1
    assert find_layers(Checkpoint(folder)) == [3, 4]
    for layer in (3, 4):
        found, want = (Checkpoint(one) for one in (folder, source))
        assert torch.equal(
            found.read(f"layers.{layer}.experts.1.fc2"), want.read(f"layers.{layer}.ffn.experts.1.w2.weight").view(torch.uint8)
        )
    assert set(Checkpoint(folder).files.values()) == {folder / f"layer-00{n}-experts-00000-00003.safetensors" for n in (3, 4)}


def test_layers_at_the_same_time(tmp_path: Path) -> None:
    """No run loses another's entries between reading the index and writing it."""
    layers, folder = range(2, 8), tmp_path / "converted"
    source = write(tmp_path / "source", layers_of(*layers))
    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(convert_checkpoint, source, folder, "fp8xfp4", layers=[layer]) for layer in layers]:
            done.result()
    assert find_layers(Checkpoint(folder)) == list(layers)
    assert not list(folder.glob(".*"))


def test_an_index_is_not_read_while_another_run_writes_it(source: Path, tmp_path: Path) -> None:
    """This test is the other run: it holds the folder, and adds layer 9 to the index before it lets go."""
    folder, written = tmp_path / "converted", threading.Event()
    convert_checkpoint(source, folder, "fp8xfp4", layers=[3])
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["layers.9.experts.0.fc1"] = "layer-009-experts-00000-00003.safetensors"

    def convert() -> None:
        convert_checkpoint(source, folder, "fp8xfp4", layers=[4], progress=lambda done, total: written.set())

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        run = threading.Thread(target=convert)
        run.start()
        assert written.wait(30)
        run.join(0.3)
        assert run.is_alive(), "it waits for the folder"
        (folder / INDEX).write_text(json.dumps(index))
    finally:
        os.close(handle)
    run.join(30)
    assert {"layers.9.experts.0.fc1", "layers.3.experts.0.fc1", "layers.4.experts.0.fc1"} <= set(Checkpoint(folder).files)


def test_layers_whose_numbers_begin_alike(tmp_path: Path) -> None:
    source, folder = write(tmp_path / "source", layers_of(3, 30)), tmp_path / "converted"
    convert_checkpoint(source, folder, "fp8xfp4", layers=[30])
    convert_checkpoint(source, folder, "fp8xfp4", layers=[3])
    assert find_layers(Checkpoint(folder)) == [3, 30]


CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another layer": {"layers": [4]},
    "all layers": {"layers": None},
    "smaller files": {"file_bytes": 1},
    "another recipe": {"recipe": "fp8xfp8", "expand": True},
    "another source": {"path": "other/source"},
    "another source, of the same path": {"home": "other"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_conversion_leaves_what_it_would_alone(change: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one that differs in one thing."""
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "source", layers_of(3, 4, seed=9))

    def convert(folder: Path, home: str = "", path: str = "source", recipe: str = "fp8xfp4", **options: Any) -> dict[str, torch.Tensor]:
        monkeypatch.chdir(tmp_path / home)
        files = convert_checkpoint(path, folder, recipe, **{"layers": [3], **options})
        index = json.loads((folder / INDEX).read_text())
        assert set(index["weight_map"].values()) >= {file.name for file in files} and index["metadata"]["recipe"] == recipe
        problem, layers = replace(WHOLE, recipe=recipe), options.get("layers", [3]) or [3, 4]
        read = {layer: read_experts(problem, folder, layer) for layer in layers}
        return {f"{layer} {name}": one for layer, found in read.items() for name, one in vars(found).items() if one is not None}

    alone = convert(tmp_path / "alone", **CHANGES[change])
    first = convert(tmp_path / "after")
    after = convert(tmp_path / "after", **CHANGES[change])
    assert after.keys() == alone.keys()
    assert all(torch.equal(after[name].view(torch.uint8), one.view(torch.uint8)) for name, one in alone.items())
    same = first.keys() == after.keys() and all(torch.equal(first[name].view(torch.uint8), after[name].view(torch.uint8)) for name in first)
    assert same == (change in ("nothing", "smaller files"))


def test_a_file_that_lacks_a_tensor_is_made_again(source: Path, tmp_path: Path) -> None:
    """Also where it says that it is of this conversion."""
    (file,) = convert_checkpoint(source, tmp_path / "converted", "fp8xfp4", layers=[3])
    with safe_open(file, "pt") as opened:
        whole, said = {name: opened.get_tensor(name) for name in set(opened.keys())}, opened.metadata()
    save_file({name: whole[name] for name in list(whole)[1:]}, file, metadata=said)
    convert_checkpoint(source, tmp_path / "converted", "fp8xfp4", layers=[3])
    with safe_open(file, "pt") as opened:  # the order of what its head says is any
        assert opened.metadata() == said and set(opened.keys()) == set(whole)
        assert all(torch.equal(opened.get_tensor(name).view(torch.uint8), one.view(torch.uint8)) for name, one in whole.items())


def test_another_layout_in_the_same_place_is_converted_anew(source: Path, tmp_path: Path) -> None:
    fc1, fc2 = torch.randn(4, 256, 256).bfloat16(), torch.randn(4, 256, 128).bfloat16()
    before, after = (convert_checkpoint(source, tmp_path / "converted", "fp8xfp4", layers=[3])[0].read_bytes() for _ in range(2))
    assert before == after
    shutil.rmtree(source)
    write(source, qwen3_moe(fc1, fc2))
    (file,) = convert_checkpoint(source, tmp_path / "converted", "fp8xfp4", layers=[3])
    assert file.read_bytes() != before


def test_a_file_has_as_many_experts_as_fit(source: Path, tmp_path: Path) -> None:
    expert = 3 * WHOLE.hidden * WHOLE.intermediate * WHOLE.formats.weights.bytes_per_value
    files = convert_checkpoint(source, tmp_path / "converted", "fp8xfp4", layers=[3], file_bytes=int(2.9 * expert))
    assert [file.name for file in files] == [f"layer-003-experts-{first:05d}-{first + 1:05d}.safetensors" for first in (0, 2)]
    assert inspect.signature(convert_checkpoint).parameters["file_bytes"].default == 2 * 1024**3


def test_one_recipe_a_folder(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    convert_checkpoint(source, folder, "fp8xfp4", layers=[3])
    before = contents(folder)
    with pytest.raises(CheckpointError, match="has other layers in recipe fp8xfp4: recipe fp8xfp8 must have another folder"):
        convert_checkpoint(source, folder, "fp8xfp8", layers=[4], expand=True)
    assert contents(folder) == before
    convert_checkpoint(source, folder, "fp8xfp8", layers=[3, 4], expand=True)
    assert json.loads((folder / INDEX).read_text())["metadata"]["recipe"] == "fp8xfp8"
    assert find_layers(Checkpoint(folder)) == [3, 4]
    with pytest.raises(CheckpointError, match="must be asked for with expand"):
        convert_checkpoint(source, tmp_path / "not asked for", "fp8xfp8")


def test_a_full_disk(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there stays, and nothing half written is left."""
    folder = tmp_path / "converted"
    convert_checkpoint(source, folder, "fp8xfp4", layers=[3])
    before = contents(folder)

    def full(tensors: Tensors, place: str, metadata: dict[str, str]) -> None:
        Path(place).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(CheckpointError, match=r"layer-004.*cannot be written \(.*No space left on device"):
        convert_checkpoint(source, folder, "fp8xfp4", layers=[4])
    copy = shutil.copytree(source, tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"layer-003.*cannot be written"):
        convert_checkpoint(copy, folder, "fp8xfp4", layers=[3])
    assert contents(folder) == before


@pytest.mark.parametrize("recipe", ["fp8xfp8", "mxfp8xmxfp8"])
def test_what_is_written_has_the_recipes_layout(tmp_path: Path, recipe: str) -> None:
    """Both are E4M3 under the same names: the dtype of the scales tells them apart."""
    fc1, fc2 = torch.randn(4, 256, 256).bfloat16(), torch.randn(4, 256, 128).bfloat16()
    folder = tmp_path / "converted"
    convert_checkpoint(write(tmp_path / "source", qwen3_moe(fc1, fc2)), folder, recipe)
    assert PublishedExperts.of(folder, LAYER).layout.name == {"fp8xfp8": "megamoe-e4m3", "mxfp8xmxfp8": "megamoe-mxfp8"}[recipe]


def test_biases_have_no_place(tmp_path: Path) -> None:
    bias = f"model.layers.{LAYER}.mlp.experts.gate_up_proj_bias"
    source = write(tmp_path / "source", {**gpt_oss(random_weights(WHOLE, 0, 1)), bias: torch.zeros(4, 256)})
    with pytest.raises(CheckpointError, match=r"no place for a bias: leave it out with ignore_biases \(--ignore-biases\)") as caught:
        convert_checkpoint(source, tmp_path / "out", "fp8xfp4")
    assert caught.value.tensor == bias and not (tmp_path / "out").exists()
    convert_checkpoint(source, tmp_path / "out", "fp8xfp4", ignore_biases=True)
    assert read_experts(WHOLE, tmp_path / "out", LAYER).fc1.shape == (4, 256, 128)


def test_progress_begins_with_the_first_file(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert_checkpoint(source, tmp_path / "out", "fp8xfp4", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_nothing_is_made_of_a_checkpoint_without_experts(tmp_path: Path) -> None:
    source = write(tmp_path / "dense", {"model.norm.weight": torch.ones(4)})
    with pytest.raises(CheckpointError, match="has no experts in a published layout"):
        convert_checkpoint(source, tmp_path / "converted", "fp8xfp4")
    assert not (tmp_path / "converted").exists()
