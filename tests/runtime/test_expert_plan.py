"""`moe` on a simulated GPU, through the driver's functions: the bits of its four kernels, also with what an earlier call prepared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forked import forked_process
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.kernels.expert_routing.layer import ExpertLayer
from megamoe_dsl.quant import quantize_weight_e4m3
from megamoe_dsl.runtime.expert_call import ExpertCall, ExpertWeightsFp8
from megamoe_dsl.runtime.simulated_experts import simulate_experts
from megamoe_dsl.target import Target

ARCH, SMS, TOKENS, CALLS = "sm_90a", 4, 5, 3
LAYER = ExpertLayer(256, 128, 8, 2)


def weights() -> ExpertWeightsFp8:
    generator = torch.Generator().manual_seed(1)
    shapes = (8, 256, 256), (8, 256, 128)
    made = [quantize_weight_e4m3(torch.randn(*shape, generator=generator)) for shape in shapes]
    return ExpertWeightsFp8(*made[0], *made[1])


def tokens(number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, topk_idx and topk_weights of a call."""
    generator = torch.Generator().manual_seed(number)
    scores = torch.rand(TOKENS, 8, generator=generator)
    return torch.randn(TOKENS, 256, generator=generator).bfloat16(), scores.topk(2).indices, torch.rand(TOKENS, 2, generator=generator)


def run_on_gpu(file: Path) -> None:
    """Results of some calls with the same shapes; every second has int32 indices."""
    from megamoe_dsl import moe
    from megamoe_dsl.runtime import experts
    from stand_in.gpu import install

    install(ARCH, SMS)
    on_gpu = [tensor.cuda() for tensor in vars(weights()).values()]
    found = []
    for number in range(CALLS):
        x, idx, topk_weights = (tensor.cuda() for tensor in tokens(number))
        found.append(moe(x, *on_gpu, topk_idx=idx.int() if number % 2 else idx, topk_weights=topk_weights).clone())
    torch.save({"y": found, "plans": len(experts._PLANS._made)}, file)


def test_calls_give_their_kernels_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path)
    artifacts = [store.get(config) for config in LAYER.configs(Target.typical(ARCH, SMS), TOKENS)]
    monkeypatch.setenv("MEGAMOE_CACHE_DIR", str(tmp_path))
    process = forked_process(run_on_gpu, (tmp_path / "found.pt",))
    process.start()
    process.join()
    assert process.exitcode == 0
    found = torch.load(tmp_path / "found.pt")
    assert found["plans"] == 1
    for number, y in enumerate(found["y"]):
        expected, _ = simulate_experts(artifacts, ExpertCall(LAYER, *tokens(number), weights()))
        assert torch.equal(y, expected)
