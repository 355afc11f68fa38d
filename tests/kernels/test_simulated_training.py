"""Both passes of `moe` on simulated chips, beside the reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from megamoe_dsl import moe
from megamoe_dsl.runtime import device_gradients, expert_gradients
from runtime.test_expert_training import NAMES, assert_near, dy_of, layer
from simulated_stages import simulate_stages
from sweep import rarely
from uninitialized import uninitialized_memory_is_garbage

garbage = pytest.fixture(autouse=True)(uninitialized_memory_is_garbage)


def gradients(given: dict[str, Any], **more: Any) -> dict[str, torch.Tensor]:
    moe(**given, **more).backward(dy_of(given["x"]))
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


@pytest.mark.parametrize(
    ("arch", "recipe", "gate_up"),
    [rarely("sm_90a", "fp8xfp8", "gate_first"), ("sm_100a", "mxfp8xmxfp8", "gate_first"), rarely("sm_100a", "mxfp8xmxfp8", "interleaved")],
)
def test_kernels_have_the_references_bits(arch: str, recipe: str, gate_up: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for dH, of an approximate sigmoid: what follows is compared of the kernel's."""
    more, rows = {"recipe": recipe, "gate_up": gate_up, "recompute": True}, list[Any]()
    launched, original = simulate_stages(monkeypatch, arch), device_gradients.row_gradients
    monkeypatch.setattr(expert_gradients, "row_gradients", lambda *given: rows.append(original(*given)) or rows[-1])
    found = gradients(layer(*NAMES), **more)
    assert len(launched) == 21
    monkeypatch.undo()
    monkeypatch.setattr(expert_gradients, "row_gradients", lambda *_: rows[0])
    expected = gradients(layer(*NAMES), **more)
    assert all(torch.equal(found[name], expected[name]) for name in ("x", "w1", "w2"))
    monkeypatch.undo()
    assert_near(found, {name: one.double() for name, one in gradients(layer(*NAMES), **more).items()}, 1e-3)


@pytest.mark.sweep
@pytest.mark.parametrize(("tokens", "experts"), [(1, 4), (130, 3)])
def test_odd_shapes_in_mxfp8(tokens: int, experts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of an expert, and more than 128 of some."""
    given = partial(layer, *NAMES, tokens=tokens, experts=experts)
    expected = gradients(given(), recipe="mxfp8xmxfp8")
    simulate_stages(monkeypatch, "sm_100a")
    assert_near(gradients(given(), recipe="mxfp8xmxfp8"), {name: one.double() for name, one in expected.items()}, 1e-3)


@pytest.mark.sweep
@pytest.mark.parametrize("recipe", [None, "mxfp8xmxfp8"])
def test_weight_gradients_are_added_to_fp32_totals(recipe: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    totals = torch.ones(4, 256, 256), torch.ones(4, 256, 128)
    expected = gradients(layer(*NAMES), recipe=recipe)
    simulate_stages(monkeypatch, "sm_100a")
    found = gradients(layer(*NAMES), main_grads=totals, recipe=recipe)
    assert found["w1"] is None and found["w2"] is None
    assert_near({name: total - 1 for name, total in zip(("w1", "w2"), totals, strict=True)}, {k: v.double() for k, v in expected.items()})
