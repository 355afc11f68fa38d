"""The operator of a MoE layer on one GPU: what it refuses before a launch, and what it is to torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from megamoe_dsl import ProblemError, moe
from megamoe_dsl.runtime.experts import top_experts

FP8 = torch.float8_e4m3fn


def arguments(**changes: Any) -> dict[str, Any]:
    """Of 6 tokens, 4 experts, top 2."""
    made = {
        "x": torch.zeros(6, 256, dtype=torch.bfloat16),
        "w1": torch.zeros(4, 512, 256, dtype=FP8),
        "w1_sf": torch.ones(4, 4, 2),
        "w2": torch.zeros(4, 256, 256, dtype=FP8),
        "w2_sf": torch.ones(4, 2, 2),
        "topk_idx": torch.zeros(6, 2, dtype=torch.int64),
        "topk_weights": torch.ones(6, 2),
    }
    return {**made, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(6, 2, 128)}, r"x.shape = \(6, 2, 128\): must be \(tokens, 256\)"),
        ({"x": torch.zeros(6, 256)}, "x.dtype = torch.float32: must be torch.bfloat16"),
        ({"w1": torch.zeros(512, 256, dtype=FP8)}, r"w1.shape = \(512, 256\): must be \(experts, 2 \* intermediate, hidden\)"),
        ({"w1_sf": torch.ones(4, 2, 2)}, r"w1_sf.shape = \(4, 2, 2\): must be \(4, 4, 2\)"),
        ({"w2": torch.zeros(4, 256, 128, dtype=FP8)}, r"w2.shape = \(4, 256, 128\): must be \(4, 256, 256\)"),
        ({"w2_sf": torch.ones(4, 2, 2, dtype=torch.float64)}, "w2_sf.dtype"),
        ({"topk_idx": torch.zeros(6, 2)}, "topk_idx.dtype = torch.float32: must be torch.int64"),
        ({"topk_idx": torch.zeros(12, dtype=torch.int64)}, r"topk_idx.shape = \(12,\): must be \(tokens, topk\)"),
        ({"topk_weights": torch.ones(6, 3)}, r"topk_weights.shape = \(6, 3\): must be \(6, 2\)"),
        ({"topk_weights": None}, "topk_idx, topk_weights = None: must be tensors, or router_logits given"),
        ({"topk": 2}, "topk = 2: must be None without router_logits"),
        ({"router_logits": torch.zeros(6, 4), "topk": 2}, "topk_idx = 'a tensor': must be None with router_logits"),
        ({"gate_up": "mixed"}, "gate_up = 'mixed': must be one of gate_first"),
        ({}, "a.device = 'cpu': must be a CUDA device"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        moe(**arguments(**changes))


def test_no_token_needs_no_kernel() -> None:
    empty = {"x": torch.zeros(0, 256, dtype=torch.bfloat16), "topk_idx": torch.zeros(0, 2, dtype=torch.int32)}
    assert moe(**arguments(**empty, topk_weights=torch.ones(0, 2))).shape == (0, 256)


def test_fake_tensors_give_the_result_s_shape() -> None:
    with FakeTensorMode():
        y = moe(**arguments())
    assert y.shape == (6, 256) and y.dtype == torch.bfloat16


def test_experts_of_logits() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 4.0, -2.0]], dtype=torch.bfloat16)
    weights, idx = top_experts(logits, 2)
    assert idx.tolist() == [[1, 2], [0, 1]]
    assert torch.allclose(weights[:, 0], torch.tensor([2.0, 1.0]).sigmoid()) and weights.dtype == torch.float32
    with pytest.raises(ProblemError, match="topk = None: must be between 1 and 3 with router_logits"):
        top_experts(logits, None)
    with pytest.raises(ProblemError, match="topk = 4: must be between 1 and 3"):
        top_experts(logits, 4)
