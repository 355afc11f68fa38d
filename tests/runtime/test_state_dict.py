"""Weights of the layer through torch's state_dict, in checkpoint order, and an expert at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import random_case, random_weights
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import WEIGHT_NAMES, ExpertWeights
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from simulated_gpu import simulated_gpu, visible

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=16, recipe="fp8xfp8")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def moe(store: ArtifactStore) -> Iterator[MegaMoE]:
    with pytest.MonkeyPatch.context() as patch, simulated_gpu(patch) as gpu:
        layer = MegaMoE(PROBLEM, store=store, symmetric=SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu"), bf16_inputs=False)
        layer.gpu = gpu  # type: ignore[assignment]
        yield layer


def fields(weights: ExpertWeights) -> dict[str, torch.Tensor]:
    return {name: getattr(weights, name) for name in WEIGHT_NAMES}


def same(found: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> bool:
    return found.keys() == want.keys() and all(torch.equal(found[n].view(torch.uint8), want[n].view(torch.uint8)) for n in want)


def test_a_layer_without_weights_is_zero_until_they_are_loaded(moe: MegaMoE) -> None:
    assert all(not tensor.float().any() for tensor in moe.state_dict().values())


def test_published_order_goes_round(moe: MegaMoE) -> None:
    weights = fields(random_weights(PROBLEM, 0, 1))
    addresses = [moe.memory.address(name) for name in weights]
    result = moe.load_state_dict(weights)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert same(dict(moe.state_dict()), weights) and [moe.memory.address(name) for name in weights] == addresses


def test_the_loaded_weights_are_those_that_run(moe: MegaMoE) -> None:
    case = random_case(PROBLEM, [3], 0)
    model = torch.nn.ModuleDict({"ffn": moe})
    given = {f"ffn.{name}": tensor for name, tensor in fields(case.weights[0]).items()}
    model.load_state_dict(given)
    assert same(dict(model.state_dict()), given)
    y = torch.empty(3, PROBLEM.hidden, dtype=torch.bfloat16)
    moe.gpu.tensors = visible(moe, y=y, x=case.x[0], x_sf=case.x_sf[0], idx=case.topk_idx[0], w=case.topk_weights[0])  # type: ignore[union-attr]
    moe(case.x[0], case.topk_idx[0], case.topk_weights[0], x_sf=case.x_sf[0], out=y)
    assert torch.equal(y, case.reference().y[0])


def test_what_does_not_fit_is_said(moe: MegaMoE) -> None:
    weights = fields(random_weights(PROBLEM, 0, 1))
    before = {name: tensor.clone() for name, tensor in moe.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"Missing key.*fc2_sf"):
        moe.load_state_dict({name: weights[name] for name in WEIGHT_NAMES[:3]})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bias"):
        moe.load_state_dict({**weights, "bias": torch.zeros(1)})
    moe.load_state_dict(before)
    with pytest.raises(RuntimeError, match=r"fc1_sf.shape = \(1,\): must be \(4, 2, 2\)"):
        moe.load_state_dict({**weights, "fc1_sf": torch.zeros(1)})
    assert same(dict(moe.state_dict()), before)


def test_one_expert_alone(moe: MegaMoE) -> None:
    weights = random_weights(PROBLEM, 0, 1)
    one = ExpertWeights(*(tensor[2:3] for tensor in fields(weights).values()))
    moe.load_expert(2, one)
    found = moe.state_dict()
    for name, tensor in fields(weights).items():
        assert torch.equal(found[name][2].float(), tensor[2].float()) and not found[name][[0, 1, 3]].float().any()
    with pytest.raises(ProblemError, match=r"index = 4: must be between 0 and experts_per_rank - 1 = 3"):
        moe.load_expert(4, one)
    with pytest.raises(ValueError, match=r"fc1.shape = \(4, 256, 256\): must be \(1, 256, 256\)"):
        moe.load_expert(0, weights)
    with pytest.raises(ValueError, match=r"fc1.dtype"):
        moe.load_expert(0, random_weights(replace(PROBLEM, num_experts=1, topk=1, recipe="fp8xfp4"), 0, 1))
    with pytest.raises(ProblemError, match=r"weights\.fc1\.device = .*meta.*: must be cpu"):
        moe.load_expert(0, one.map(lambda tensor: tensor.to("meta")))


def test_files_of_torch_and_of_safetensors(moe: MegaMoE, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = fields(random_weights(PROBLEM, 0, 1))
    moe.load_state_dict(weights)
    torch.save(moe.state_dict(), tmp_path / "layer.pt")
    save_file(dict(moe.state_dict()), str(tmp_path / "layer.safetensors"))
    assert same(torch.load(tmp_path / "layer.pt", weights_only=True), weights)
    assert same(load_file(str(tmp_path / "layer.safetensors")), weights)
