"""The layer with packed tokens (mxf4xmxf4) on a simulated GPU: rows of tokens are half as wide as those of y."""

from __future__ import annotations

import pytest
import torch

from megamoe_dsl.arch import SM100
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime import layer
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target
from simulated_gpu import NUM_SMS, SimulatedKernel, visible

PROBLEM = Problem(256, 128, 2, 2, max_tokens_per_rank=4, recipe="mxf4xmxf4")
TOKENS = 3


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(PROBLEM, [TOKENS], 0, mask=0.2)


@pytest.fixture
def moe(case: Case, gpu: type[SimulatedKernel], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> layer.MegaMoE:
    monkeypatch.setattr(layer, "gpu_target", lambda device: Target(SM100, NUM_SMS, "simulated"))
    store = ArtifactStore(tmp_path_factory.mktemp("kernels"))
    symmetric = SymmetricBuffer.allocate(PROBLEM, SM100, device="cpu")
    return layer.MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=symmetric, bf16_inputs=False)


def test_the_layer_makes_y_as_wide_as_the_hidden_size(
    moe: layer.MegaMoE, case: Case, gpu: type[SimulatedKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"x": case.x[0], "x_sf": case.x_sf[0], "topk_idx": case.topk_idx[0], "topk_weights": case.topk_weights[0]}
    make = layer.new_output

    def shown(x: torch.Tensor, hidden: int) -> torch.Tensor:
        y = make(x, hidden).fill_(float("nan"))
        gpu.tensors = visible(moe, y=y, **given)
        return y

    monkeypatch.setattr(layer, "new_output", shown)
    want = case.reference().y[0]
    assert torch.equal(moe(**given), want) and want.any()


def test_so_does_the_operator_that_compilers_see(moe: layer.MegaMoE, case: Case) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    given = (case.x[0], case.x_sf[0], case.topk_idx[0], case.topk_weights[0], moe.symmetric.order)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(tensor) for tensor in given]
        y = torch.ops.megamoe_dsl.mega_moe(*fake, moe.number, -1)
    assert (y.shape, y.dtype) == ((TOKENS, PROBLEM.hidden), torch.bfloat16)
