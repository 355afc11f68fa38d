"""gpt-oss's layer from its checkpoint to y: MXFP4 weights, biases, activation, channels that fill no whole tiles, on a simulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from expert_reading import read_experts
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import random_inputs
from megamoe_dsl.checkpoints import load_experts
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import dequantize_e2m1, dequantize_e4m3_f32, quantize_e2m1
from megamoe_dsl.reference import LayerInputs, error_bound, mega_moe_stages
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from sampled import sampled
from simulated_gpu import simulated_gpu, visible

HIDDEN, INTERMEDIATE, EXPERTS, TOKENS = 320, 192, 4, 5
PROBLEM = Problem(HIDDEN, INTERMEDIATE, EXPERTS, 2, max_tokens_per_rank=16, recipe="fp8xmxfp4", activation="swigluoai", biases=True)


def checkpoint(path: Path) -> tuple[torch.Tensor, ...]:
    """A layer under its published names; what its weights and biases stand for: W1, rows of gate and up in turns, b1, W2, b2."""
    generator, stem = torch.Generator().manual_seed(0), "model.layers.3.mlp.experts"
    found: dict[str, torch.Tensor] = {}
    plain = []
    for name, rows, k in (("gate_up_proj", 2 * INTERMEDIATE, HIDDEN), ("down_proj", HIDDEN, INTERMEDIATE)):
        codes, scales = quantize_e2m1(torch.randn(EXPERTS, rows, k, generator=generator) * k**-0.5)
        bias = torch.randn(EXPERTS, rows, generator=generator).bfloat16()
        found |= {f"{stem}.{name}_blocks": codes.unflatten(-1, (-1, 16)), f"{stem}.{name}_scales": scales, f"{stem}.{name}_bias": bias}
        plain += [dequantize_e2m1(codes, scales).float(), bias.float()]
    save_file(found, str(path / "model.safetensors"))
    return tuple(plain)


def gpt_oss(
    x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor
):
    """y as the model computes it, nothing quantized: gate and up of alternate rows, the top-k weight on results."""
    y = torch.zeros(len(x), HIDDEN)
    for token, slot in (idx >= 0).nonzero().tolist():
        e = idx[token, slot]
        gate_up = w1[e] @ x[token] + b1[e]
        gate, up = gate_up[0::2].clamp(max=7.0), gate_up[1::2].clamp(-7.0, 7.0)
        y[token] += weights[token, slot] * (w2[e] @ (gate * (1.702 * gate).sigmoid() * (up + 1)) + b2[e])
    return y


def test_from_checkpoint_to_y(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = checkpoint(tmp_path)
    with simulated_gpu(monkeypatch) as gpu:
        symmetric = SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu")
        moe = MegaMoE(PROBLEM, store=ArtifactStore(tmp_path / "kernels"), symmetric=symmetric, bf16_inputs=False)
        load_experts(moe, tmp_path, 3)
        given = random_inputs(PROBLEM, 0, TOKENS, 1)
        y = torch.full((TOKENS, PROBLEM.hidden), float("nan"), dtype=torch.bfloat16)
        gpu.tensors = visible(moe, y=y, **given._asdict())
        moe(given.x, given.topk_idx, given.topk_weights, x_sf=given.x_sf, out=y)
    weights = read_experts(PROBLEM, tmp_path, 3)
    inputs = LayerInputs(PROBLEM, *([one] for one in given), [weights])
    want = mega_moe_stages(sampled(inputs, [torch.arange(TOKENS)]), "hopper").y[0]
    bound = error_bound(inputs, sums_exact=True, accumulate="hopper")[0]
    assert bool(((y.double() - want.double()).abs() <= bound).all())
    x = dequantize_e4m3_f32(given.x, given.x_sf).float()
    model = gpt_oss(x, given.topk_idx, given.topk_weights, *published)
    assert float((y.float() - model).norm() / model.norm()) < 0.05, "E4M3 between the linears is what is different"
    assert moe.state_dict().keys() == {"fc1", "fc1_sf", "fc2", "fc2_sf", "fc1_bias", "fc2_bias"}
    assert torch.equal(moe.state_dict()["fc1_bias"], weights.fc1_bias)
