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
from megamoe_dsl.kernels.decode.family import few_config
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import quantize_e4m3_f32
from megamoe_dsl.runtime import few_tokens
from megamoe_dsl.runtime.few_tokens import FewTokens
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.preparation import layer_kernels
from megamoe_dsl.target import Target

PROBLEM = Problem(256, 128, 4, 2, 1, 8, recipe="fp8xmxfp4")
TARGET = Target.typical("sm_90a", 4)


def run_on_gpu(folder: Path) -> None:
    """Into a file: what calls with BF16 tokens give, with quantized ones, and with a row of padding; tokens of experts after each."""
    from stand_in.gpu import install

    install("sm_90a", TARGET.num_sms)
    case = random_case(PROBLEM, (5,), 1, mask=0.2, exact=False)
    layer = MegaMoE(PROBLEM, case.weights[0].map(lambda one: one.cuda()), store=ArtifactStore(folder))
    routing = case.topk_idx[0].cuda(), case.topk_weights[0].cuda()
    x = torch.randn(5, PROBLEM.hidden, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
    q, sf = quantize_e4m3_f32(x.float())
    calls = {"few": lambda: layer(x, *routing), "fused": lambda: layer(q, *routing, x_sf=sf)}
    calls["again"], calls["padded"] = calls["few"], lambda: layer(x, *routing, padded_tokens=6)
    found = {name: (call().cpu(), layer.stats.cpu().clone()) for name, call in calls.items()}
    assert layer.few is not None
    torch.save((found, [one.cpu() for one in layer.few.kernel.stream_state.kept.values()]), folder / RECORD)


def test_a_few_tokens_have_the_fused_kernels_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, (memory,) = recorded_by(run_on_gpu, tmp_path, monkeypatch)
    assert memory[0] == 0 and (memory[LINE // 4 :] != ABSENT).any()  # two launches on it
    y, stats = found["few"]
    assert all(torch.equal(other[:5], y) for other, _ in found.values()) and not found["padded"][0][5:].any()
    assert [torch.equal(counts, turn * stats) for turn, (_, counts) in enumerate(found.values(), 1)] == [True] * 4 and stats.sum() > 0


def test_layers_that_take_such_a_launch() -> None:
    config = few_config(PROBLEM, TARGET)
    assert config is not None and config.block_m == 8 and config in layer_kernels(PROBLEM, TARGET, ())
    others = {"recipe": "fp8xfp8"}, {"num_ranks": 2}, {"hidden": 384}, {"biases": True}, {"combine": "e4m3"}
    assert not any(few_config(replace(PROBLEM, **fields), TARGET) for fields in others)
    assert not few_config(replace(PROBLEM, recipe="fp8xfp4"), Target.typical("sm_100a"))


def test_what_does_not_lie_as_tma_wants_goes_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """x or y of odd places, scales, padding, other indices: `MegaMoE` launches its fused kernel then."""
    few: FewTokens = object.__new__(FewTokens)
    launched: list[bytes] = []
    state = SimpleNamespace(of=lambda stream, capturing: 0)
    kernel = {"config": few_config(PROBLEM, TARGET), "launch": lambda prepared, *_: launched.append(prepared), "stream_state": state}
    few.kernel, few._index, few._prepared = SimpleNamespace(**kernel), 0, {2: b"2"}  # type: ignore[assignment]
    monkeypatch.setattr(few_tokens, "current_stream", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    x, odd = torch.zeros(2, 256, dtype=torch.bfloat16), torch.zeros(513, dtype=torch.bfloat16)[1:].view(2, 256)
    idx, weights = torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2)
    assert [few((one, None, idx, weights), y) for one, y in ((x, x), (odd, x), (x, odd))] == [True, False, False]
    assert launched == [b"2"]
    calls = [
        ((x, None, idx, weights), 2),
        ((x, weights, idx, weights), 2),
        ((x, None, idx.int(), weights), 2),
        ((x, None, idx, weights), 3),
    ]
    calls += [((x[:0], None, idx[:0], weights[:0]), 0), ((x.repeat(5, 1), None, idx.repeat(5, 1), weights), 10)]
    assert [few.takes(*one) for one in calls] == [True, *[False] * 5]
