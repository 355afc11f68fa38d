"""The backward pass of `moe` in BF16 on simulated chips, beside the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megamoe_dsl import moe
from runtime.test_expert_training import DY, NAMES, assert_near, layer
from simulated_stages import simulate_stages
from sweep import rarely


def gradients(given: dict[str, Any], **more: Any) -> dict[str, torch.Tensor]:
    moe(**given, **more).backward(DY)
    return {name: given[name].grad for name in NAMES}


@pytest.mark.parametrize(
    ("arch", "how"),
    [rarely("sm_90a", {}), ("sm_100a", {}), rarely("sm_100a", {"recompute": True, "gate_up": "interleaved"})],
)
def test_gradients_are_the_references(arch: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """But for an approximate sigmoid, and on Blackwell another order of sums; an expert without rows, a masked slot."""
    expected = gradients(layer(*NAMES), **how)
    assert simulate_stages(monkeypatch, arch) == []
    assert_near(gradients(layer(*NAMES), **how), {name: one.double() for name, one in expected.items()}, 2e-3)


@pytest.mark.sweep
def test_weight_gradients_are_added_to_fp32_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = torch.ones(4, 256, 256), torch.ones(4, 256, 128)
    expected = gradients(layer(*NAMES))
    simulate_stages(monkeypatch, "sm_100a")
    found = gradients(layer(*NAMES), main_grads=totals)
    assert found["w1"] is None and found["w2"] is None
    assert_near({name: total - 1 for name, total in zip(("w1", "w2"), totals, strict=True)}, {k: v.double() for k, v in expected.items()})
