"""The layer with weights of 4 bits (fp8xmxfp4) on a simulated GPU: a kernel whose math warps decode and one that has decode warps, on one
copy of the weights."""

from __future__ import annotations

import pytest
import torch

from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import WEIGHT_NAMES, quantize_e4m3_f32
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from simulated_gpu import SimulatedKernel, visible

PROBLEM = Problem(256, 256, 2, 2, max_tokens_per_rank=64, recipe="fp8xmxfp4")
TOKENS, FEW, MANY = 3, 4, 64
TILES = {FEW: 8, MANY: 128}


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(PROBLEM, [TOKENS], 0, mask=0.2)


@pytest.fixture(scope="module")
def moe(case: Case, gpu: type[SimulatedKernel], tmp_path_factory: pytest.TempPathFactory) -> MegaMoE:
    store = ArtifactStore(tmp_path_factory.mktemp("kernels"))
    return MegaMoE(
        PROBLEM, case.weights[0], store=store, symmetric=SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu"), bounds=(FEW, MANY)
    )


@pytest.mark.parametrize("bound", [FEW, MANY])
def test_every_kernel_gives_the_references_bits(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel], bound: int) -> None:
    given = {"x": case.x[0], "x_sf": case.x_sf[0], "topk_idx": case.topk_idx[0], "topk_weights": case.topk_weights[0]}
    y = torch.full((TOKENS, PROBLEM.hidden), float("nan"), dtype=torch.bfloat16)
    gpu.tensors = visible(moe, y=y, **given)
    assert moe(**given, num_tokens_bound=bound, out=y) is y
    assert torch.equal(y, case.reference().y[0]) and y.any()
    assert moe.kernels[bound].config.block_m == TILES[bound] and gpu.launched[-1] is moe.kernels[bound].config


def test_bf16_inputs(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel]) -> None:
    x = torch.randn(TOKENS, PROBLEM.hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
    idx, weights = case.topk_idx[0], case.topk_weights[0]
    y = torch.full((TOKENS, PROBLEM.hidden), float("nan"), dtype=torch.bfloat16)
    gpu.tensors = visible(moe, y=y, x=x, topk_idx=idx, topk_weights=weights)
    moe(x, idx, weights, out=y, num_tokens_bound=MANY)
    want = Case(PROBLEM, *([one] for one in (*quantize_e4m3_f32(x), idx, weights)), case.weights, exact=False).reference().y[0]
    torch.testing.assert_close(y, want, rtol=2**-7, atol=2**-7 * float(want.abs().max()))


def test_published_order_goes_round(moe: MegaMoE, case: Case) -> None:
    """Packed as published, from tiles in which scales are taken apart."""
    state = moe.state_dict()
    weights = {name: getattr(case.weights[0], name) for name in WEIGHT_NAMES}
    assert all(torch.equal(state[name].view(torch.uint8), weights[name].view(torch.uint8)) for name in weights)
    moe.load_state_dict(weights)
    assert all(torch.equal(moe.state_dict()[name].view(torch.uint8), weights[name].view(torch.uint8)) for name in weights)
