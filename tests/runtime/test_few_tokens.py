"""A few tokens of a `MegaMoE` with E2M1 weights on one GPU, which is simulated: the launch of their own, and the fused kernel's bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from forked import RECORD, recorded_by
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import random_case
from megamoe_dsl.kernels.decode.config import ABSENT, LINE
from megamoe_dsl.kernels.decode.family import few_configs, most_tokens
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import quantize_e4m3_f32
from megamoe_dsl.runtime import expert_plan
from megamoe_dsl.runtime.expert_plan import FewTokens
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.preparation import layer_kernels
from megamoe_dsl.target import Target

PROBLEM = Problem(256, 128, 4, 2, 1, 9, recipe="fp8xmxfp4")
TARGET = Target.typical("sm_90a", 4)


def run_on_gpu(folder: Path) -> None:
    """Into a file: what calls with BF16 tokens give, with quantized ones, and with a row of padding; tokens of experts after each."""
    from stand_in.gpu import install

    install("sm_90a", TARGET.num_sms)
    case = random_case(PROBLEM, (9,), 1, mask=0.2, exact=False)
    layer = MegaMoE(PROBLEM, case.weights[0].map(lambda one: one.cuda()), store=ArtifactStore(folder))
    nine = case.topk_idx[0].cuda(), case.topk_weights[0].cuda()
    all_x = torch.randn(9, PROBLEM.hidden, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
    x, *routing = (one[:5] for one in (all_x, *nine))
    q, sf = quantize_e4m3_f32(x.float())
    calls = {"few": lambda: layer(x, *routing), "fused": lambda: layer(q, *routing, x_sf=sf)}
    calls["again"] = calls["few"]
    found = {name: (call().cpu(), layer.stats.cpu().clone()) for name, call in calls.items()}
    assert layer.few is not None
    memory = [one.cpu() for one in layer.few.kernels[0].stream_state.kept.values()]
    more, (all_q, all_sf) = layer(all_x, *nine).cpu(), quantize_e4m3_f32(all_x.float())
    assert layer.few.kernels[1].stream_state.kept and torch.equal(more, layer(all_q, *nine, x_sf=all_sf).cpu())
    torch.save((found, memory), folder / RECORD)


def test_a_few_tokens_have_the_fused_kernels_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, (memory,) = recorded_by(run_on_gpu, tmp_path, monkeypatch)
    assert memory[0] == 0 and (memory[LINE // 4 :] != ABSENT).any()  # two launches on it
    y, stats = found["few"]
    assert all(torch.equal(other[:5], y) for other, _ in found.values())
    assert [torch.equal(counts, turn * stats) for turn, (_, counts) in enumerate(found.values(), 1)] == [True] * 3 and stats.sum() > 0


def test_layers_that_take_such_a_launch() -> None:
    few, more = few_configs(PROBLEM, TARGET)
    assert [(one.max_tokens, one.block_m) for one in (few, more)] == [(8, 8), (16, 8)] and {few, more} <= {
        *layer_kernels(PROBLEM, TARGET, ())
    }
    eight, large = replace(PROBLEM, max_tokens_per_rank=8), replace(PROBLEM, hidden=8192, intermediate=1024)
    assert few_configs(eight, TARGET) == (few,) and [one.max_tokens for one in few_configs(large, TARGET)] == [8]
    assert [most_tokens(few.problem), most_tokens(few_configs(large, TARGET)[0].problem)] == [16, 4]
    assert not few_configs(replace(large, hidden=65536), TARGET)
    others = {"recipe": "fp8xfp8"}, {"num_ranks": 2}, {"hidden": 384}, {"biases": True}, {"combine": "e4m3"}
    assert not any(few_configs(replace(PROBLEM, **fields), TARGET) for fields in others)
    assert not few_configs(replace(PROBLEM, recipe="fp8xfp4"), Target.typical("sm_100a"))
    layers = {"shared_experts": 1}, {"fused": False}, {"bf16_inputs": False}
    assert not any(few_configs(PROBLEM, TARGET, **layer) for layer in layers)


def test_what_does_not_lie_as_tma_wants_goes_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """x or y of odd places, scales, padding, other indices: `MegaMoE` launches its fused kernel then."""
    few: FewTokens = object.__new__(FewTokens)
    launched: list[int] = []
    state = SimpleNamespace(of=lambda stream, capturing: 0)
    few._index, few._prepared = 0, {2: b"2", 9: b"9"}
    few.kernels = [
        SimpleNamespace(config=one, launch=lambda *_, most=one.max_tokens: launched.append(most), stream_state=state)  # type: ignore[misc]
        for one in few_configs(PROBLEM, TARGET)
    ]
    monkeypatch.setattr(expert_plan, "current_stream", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    x, odd = torch.zeros(2, 256, dtype=torch.bfloat16), torch.zeros(513, dtype=torch.bfloat16)[1:].view(2, 256)
    idx, weights, more = torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2), torch.zeros(9, 256, dtype=torch.bfloat16)
    assert [few((one, None, idx, weights), y) for one, y in ((x, x), (odd, x), (x, odd), (more, more))] == [True, False, False, True]
    assert launched == [8, 16]
    assert few.takes((x, None, idx, weights))
    monkeypatch.setattr(expert_plan, "most_tokens", lambda problem: 1)  # matrices so large
    assert not few.takes((x, None, idx, weights)) and few.takes((x[:1], None, idx[:1], weights))
    monkeypatch.undo()
    others = (x, weights, idx), (x, None, idx.int()), (x[:0], None, idx[:0]), (x.repeat(10, 1), None, idx.repeat(10, 1))
    assert not any(few.takes((*one, weights)) for one in others)
