"""`moe` on a simulated GPU, through the driver's functions: the bits of its four kernels, also with what an earlier call prepared."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from forked import forked_process
from made import count_made
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.expert_routing.problem import RoutingProblem
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.quant import no_scales, nvfp4_factor, quantize_nvfp4, quantize_weight_e4m3
from megamoe_dsl.quant.expert_factors import expert_factors
from megamoe_dsl.reference.router import top_experts as reference
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.gemm_scales import gemm_weights
from megamoe_dsl.target import Target
from simulated_experts import simulate_experts
from sweep import sample

SM100 = "sm_100a"
SMS, TOKENS, CALLS = 4, 5, 3
LAYER = ExpertLayer(256, 128, 8, 2)


def weights(recipe: str) -> LayerOperands:
    generator = torch.Generator().manual_seed(1)
    shapes = (8, 256, 256), (8, 256, 128)
    drawn = [torch.randn(*shape, generator=generator) for shape in shapes]
    if recipe == "nvfp4xnvfp4":
        halves = [quantize_nvfp4(one, nvfp4_factor(one)) for one in drawn]
        return LayerOperands(*gemm_weights(*halves[0], SM100, gate_up="gate_first"), *gemm_weights(*halves[1], SM100))
    made = [quantize_weight_e4m3(one) if recipe == "fp8xfp8" else (one.bfloat16(), no_scales(one)) for one in drawn]
    return LayerOperands(*made[0], *made[1])


def factors(recipe: str) -> torch.Tensor | None:
    """Of NVFP4, each expert's own."""
    if recipe != "nvfp4xnvfp4":
        return None
    gate, up, hidden, w2 = torch.rand(4, 8, generator=torch.Generator().manual_seed(2)) / 1000
    return expert_factors(2e-3, torch.stack([gate, up], dim=1), hidden, w2)


def tokens(number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, topk_idx and topk_weights of a call."""
    generator = torch.Generator().manual_seed(number)
    scores = torch.rand(TOKENS, 8, generator=generator)
    return torch.randn(TOKENS, 256, generator=generator).bfloat16(), scores.topk(2).indices, torch.rand(TOKENS, 2, generator=generator)


def run_on_gpu(file: Path, recipe: str, arch: str) -> None:
    """Results of some calls with the same shapes; every second has int32 indices.  Only the first of each looks at the layer, but where
    x is in a tensor map.  Gate and up go where a call says."""
    from megamoe_dsl import moe as moe_of_any
    from megamoe_dsl.runtime import experts
    from megamoe_dsl.runtime.top_experts import top_experts
    from stand_in.gpu import install

    install(arch, SMS)
    given_factors = factors(recipe)
    moe = partial(moe_of_any, factors=None if given_factors is None else given_factors.cuda())
    on_gpu = [tensor.cuda() for tensor in weights(recipe) if tensor is not None]
    calls = [[tensor.cuda() for tensor in tokens(number)] for number in range(CALLS)]
    found = []
    anew = (recipe, arch) == ("bf16xbf16", SM100)  # its Linear1 has a tensor map of x
    made = count_made(RoutingProblem, pytest.MonkeyPatch())
    for number, (x, idx, topk_weights) in enumerate(calls):
        found.append(moe(x, *on_gpu, topk_idx=idx.int() if number % 2 else idx, topk_weights=topk_weights).clone())
        assert bool(made) == (number < 2 or anew)
        made.clear()
    stored = torch.zeros(3, TOKENS * 2, 256, dtype=torch.bfloat16).cuda()
    for place in stored[:2]:
        assert torch.equal(moe(x, *on_gpu, topk_idx=idx, topk_weights=topk_weights, preactivations=place), found[-1])
    assert torch.equal(stored[0], stored[1]) and stored[0].any(dim=1).all()
    unaligned = stored[1:].flatten()[1 : 1 + stored[0].numel()].view_as(stored[0])
    with pytest.raises(ProblemError, match=r"preactivations\.data_ptr\(\) = \d+: must be a multiple of 16"):
        moe(x, *on_gpu, topk_idx=idx, topk_weights=topk_weights, preactivations=unaligned)
    logits = torch.randn(TOKENS, 8, generator=torch.Generator().manual_seed(7))
    idx, topk_weights = top_experts(logits.cuda(), 2, scores="sigmoid", scale=2.5)
    x = tokens(0)[0].cuda()
    routed = [moe(x, *on_gpu, router_logits=logits.cuda(), topk=2, scores="sigmoid", weight_scale=2.5).clone() for _ in range(2)]
    given = moe(x, *on_gpu, topk_idx=idx, topk_weights=topk_weights)
    plans = [len(one._made) for one in (experts._PLANS, experts._ROUTED)]
    found_of_logits = {"logits": logits, "idx": idx.clone(), "topk_weights": topk_weights.clone(), "routed": routed, "given": given.clone()}
    torch.save({"y": found, "plans": plans, **found_of_logits}, file)


@sample("bf16xbf16-sm_100a")
@pytest.mark.parametrize(("recipe", "arch"), [("fp8xfp8", "sm_90a"), ("bf16xbf16", "sm_90a"), ("bf16xbf16", SM100), ("nvfp4xnvfp4", SM100)])
def test_calls_give_their_kernels_bits(recipe: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In BF16 the second launch reads a call's own tokens, wherever they are; on SM100 through a tensor map."""
    store, layer = ArtifactStore(tmp_path), replace(LAYER, recipe=recipe)
    artifacts = [store.get(config) for config in layer.configs(Target.typical(arch, SMS), TOKENS)]
    monkeypatch.setenv("MEGAMOE_CACHE_DIR", str(tmp_path))
    process = forked_process(run_on_gpu, (tmp_path / "found.pt", recipe, arch))
    process.start()
    process.join()
    assert process.exitcode == 0
    found = torch.load(tmp_path / "found.pt")
    assert found["plans"] == [3, 1]
    assert all(torch.equal(y, found["given"]) for y in found["routed"])
    expected_idx, expected_weights = reference(found["logits"], 2, "sigmoid", scale=2.5)
    assert torch.equal(found["idx"].int(), expected_idx) and torch.allclose(found["topk_weights"], expected_weights, rtol=2e-6, atol=0)
    for number, y in enumerate(found["y"]):
        expected, _ = simulate_experts(artifacts, ExpertCall(layer, *tokens(number), weights(recipe)._replace(factors=factors(recipe))))
        assert torch.equal(y, expected)
