"""Layers of `EpMoE` on a recorded GPU: a training step, and layers that take turns with one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from megamoe_dsl import Problem, ProblemError, Target, random_weights
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.store import ArtifactError, ArtifactStore
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import symmetric_buffer
from megamoe_dsl.runtime.ep import layer as layers
from megamoe_dsl.runtime.ep.buffers import EpBuffers
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from recorded_gpu import SMS, RecordedGpu, recorded_gpu

PROBLEM = Problem(512, 256, 4, 2, 1, 64, recipe="bf16xbf16")
STEP = ["RoutingTablesConfig", "DispatchGemmConfig", "GemmCombineConfig", "DispatchGemmConfig", "GemmCombineConfig"]


@pytest.fixture
def gpu() -> Iterator[RecordedGpu]:
    with recorded_gpu() as recorded:
        yield recorded


def layer_of(problem: Problem = PROBLEM, **options: Any) -> EpMoE:
    return EpMoE(problem, random_weights(problem, 0, 0), activation=lambda rows: rows[:, :256] * rows[:, 256:], **options)


def tokens(layer: EpMoE, *trained: str) -> dict[str, torch.Tensor]:
    """Three of a layer's; `trained` names those, and weights, that have gradients."""
    weights = {"fc1": layer.memory.weights.fc1, "fc2": layer.memory.weights.fc2}
    given = {"x": torch.zeros(3, 512).bfloat16(), "topk_idx": torch.zeros(3, 2).long(), "topk_weights": torch.ones(3, 2)}
    for name in trained:
        {**weights, **given}[name].requires_grad_()
    return given


def test_masked_slots_have_no_gradient_after_another_call(gpu: RecordedGpu) -> None:
    """The backward pass has the tables of its own call."""
    layer = layer_of()
    given = tokens(layer, "x", "topk_weights", "fc1", "fc2")
    layer.memory.view("pair_rows").fill_(-1)
    y = layer(**given)
    assert "_backward" in vars(layer), "kernels of the backward pass, for which other ranks would wait"
    layer.memory.view("pair_rows").zero_()
    y.sum().backward()
    assert [type(one.config).__name__ for one in gpu.launched()] == STEP
    assert given["topk_weights"].grad is not None and not given["topk_weights"].grad.any()
    assert layer.memory.weights.fc1.grad is not None


@pytest.mark.parametrize("trained", ["x", "topk_weights", "fc1", "fc2"])
def test_a_rank_takes_part_in_both_halves_of_a_backward_pass(trained: str, gpu: RecordedGpu) -> None:
    """Whatever has gradients there: others wait for it."""
    layer = layer_of()
    layer(**tokens(layer, trained)).sum().backward()
    assert [type(one.config).__name__ for one in gpu.launched()] == STEP


@pytest.mark.parametrize(("trained", "kept"), [("fc1", [(512, 512)]), ("fc2", []), ("x", []), ("topk_weights", [])])
def test_rows_of_tokens_are_kept_for_the_gradient_of_w1_alone(trained: str, kept: list[tuple[int, int]], gpu: RecordedGpu) -> None:
    layer, saved = layer_of(), list[tuple[int, ...]]()
    layer.memory.view("expert_rows").fill_(2)  # a block of 128 rows each
    pool = layer.memory.view("fc1_acts")

    def pack(one: torch.Tensor) -> torch.Tensor:
        saved.extend([tuple(one.shape)] * (one.shape[1:] == pool.shape[1:] and one.dtype == pool.dtype))
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        layer(**tokens(layer, trained))
    assert saved == kept


@pytest.mark.parametrize("trained", [(), ("x",)])
def test_a_rank_without_tokens_takes_part(trained: tuple[str, ...], gpu: RecordedGpu) -> None:
    layer = layer_of()
    given = {name: one.detach()[:0].requires_grad_(name in trained) for name, one in tokens(layer).items()}
    y = layer(**given)
    assert y.shape == (0, 512) and [type(one.config).__name__ for one in gpu.launched()] == STEP[:3]
    if trained:
        y.sum().backward()
        assert [type(one.config).__name__ for one in gpu.launched()] == STEP and given["x"].grad is not None


@pytest.mark.parametrize("trained", [(), ("x",)])
def test_the_host_waits_for_tables_alone(trained: tuple[str, ...], gpu: RecordedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for numbers of rows before the dispatch is launched."""
    layer, found, plain = layer_of(), list[list[str]](), EpBuffers.row_counts

    def ask(buffers: EpBuffers) -> list[int]:
        found.append([type(one.config).__name__ for one in gpu.launched()])
        return plain(buffers)

    monkeypatch.setattr(EpBuffers, "row_counts", ask)
    layer(**tokens(layer, *trained))
    assert found == [STEP[:1]] and [type(one.config).__name__ for one in gpu.launched()] == STEP[:3]


def test_gradients_of_weights_go_to_main_grads(gpu: RecordedGpu) -> None:
    layer = layer_of()
    given, totals = tokens(layer, "fc1", "fc2"), (torch.ones(4, 512, 512), torch.ones(4, 512, 256))
    layer(**given, main_grads=totals).sum().backward()
    assert layer.memory.weights.fc1.grad is layer.memory.weights.fc2.grad is None and all(one.all() for one in totals)
    with pytest.raises(ProblemError, match=r"^main_grads\[1\]\.shape = \(4, 512, 512\): must be \(4, 512, 256\)"):
        layer(**given, main_grads=totals[:1] * 2)
    layer.activation = lambda rows: rows[:, :256].float()
    with pytest.raises(ProblemError, match=r"^activation = \(torch\.float32, \(0, 256\)\): must be bfloat16 \(0, 256\)"):
        layer(**given)


def test_compilers_leave_a_training_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits in it for numbers of rows."""
    monkeypatch.setattr(EpMoE, "train_call", lambda layer, x: x + 1)
    with recorded_gpu():
        trains, computes = layer_of(), layer_of(replace(PROBLEM, recipe="fp8xfp8"))
    x = torch.ones(2)
    assert torch.compile(lambda one: computes.untraced_call(one), fullgraph=True, backend="eager")(x).eq(2).all()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda one: trains.untraced_call(one), fullgraph=True, backend="eager")(x)


def test_layers_on_one_buffer_have_the_same_fields(gpu: RecordedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the third layer, after one that was refused, but not after one that could not be made; and none has its weights elsewhere."""
    symmetric = SymmetricBuffer.allocate(PROBLEM, region=symmetric_buffer(PROBLEM))
    for error in (ArtifactError, KeyboardInterrupt):
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(ArtifactStore, "get", Mock(side_effect=error))
            layer_of(symmetric=symmetric, dispatch={"block_m": 128, "block_n": 64})
    layer_of(symmetric=symmetric, dispatch={"block_m": 64, "block_n": 64})
    for _ in range(2):
        with pytest.raises(ProblemError, match=r"dispatch\.block_m = 128: must be 64, as on this symmetric buffer before"):
            layer_of(symmetric=symmetric, dispatch={"block_m": 128, "block_n": 64})
    layer_of(symmetric=symmetric, dispatch={"block_m": 64, "block_n": 64})
    weights = random_weights(PROBLEM, 0, 0)
    gpu.mode.far = {one.untyped_storage().data_ptr() for one in (weights.fc1, weights.fc1_sf, weights.fc2, weights.fc2_sf)}
    with pytest.raises(ProblemError, match=r"weights\.fc1\.device = .*cuda.*1.*: must be cuda:0"):
        EpMoE(PROBLEM, replace(weights), activation=torch.nn.Identity(), symmetric=symmetric, dispatch={"block_m": 64, "block_n": 64})
    with pytest.raises(ProblemError, match=r"^fc2\.shape = \(4, 512, 128\): must be \(4, 512, 256\)"):
        EpMoE(PROBLEM, replace(weights, fc2=weights.fc2[:, :, :128]), activation=torch.nn.Identity(), symmetric=symmetric)


def test_tensors_that_do_not_fit_launch_nothing(gpu: RecordedGpu) -> None:
    layer = layer_of()
    given, launched = tokens(layer), len(gpu.launched())
    for name, one in (("x", given["x"][:, :256]), ("topk_idx", given["topk_idx"][:2]), ("topk_weights", given["topk_weights"].double())):
        with pytest.raises(ProblemError, match=rf"^{name}\.(shape|dtype) = "):
            layer(**{**given, name: one})
    with pytest.raises(ProblemError, match=r"^out\.shape = \(2, 512\): must be \(3, 512\)"):
        layer(**given, out=torch.zeros(2, 512).bfloat16())
    assert len(gpu.launched()) == launched


def test_each_dispatch_has_tables_of_its_own(gpu: RecordedGpu) -> None:
    """Made once."""
    layer = layer_of()
    other = layer.dispatch_config.replace(token_saving=not layer.dispatch_config.token_saving)
    first, second = layer.tables_for(layer.dispatch_config), layer.tables_for(other)
    assert first is layer.tables_for(layer.dispatch_config) and second is layer.tables_for(other)
    assert (first.artifact.config.token_saving, second.artifact.config.token_saving) == (not other.token_saving, other.token_saving)


def test_kernels_come_from_the_store_that_is_given(gpu: RecordedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, get = list[ArtifactStore](), ArtifactStore.get
    monkeypatch.setattr(ArtifactStore, "get", lambda store, config: asked.append(store) or get(store, config))
    store = ArtifactStore(tmp_path)
    layer = layer_of(store=store)
    layer(**tokens(layer, "x"))
    assert len(asked) == 6 and all(one is store for one in asked)


def test_kernels_of_the_backward_pass_are_prepared_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "compile_ahead", lambda configs, store, jobs: len(set(configs)))
    counts = [EpMoE.prepare(PROBLEM, target=Target(SM90, SMS), train=train) for train in (False, True)]
    assert counts == [3, 8]
