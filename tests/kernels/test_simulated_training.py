"""The backward pass of `moe` on simulated chips: what a GPU launches, launched in the simulator, beside the reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gemm_runs import artifact
from megamoe_dsl import moe
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.kernels.registry import choose
from megamoe_dsl.runtime import device_gradients, expert_gradients, k_grouped_gemm
from megamoe_dsl.runtime.simulated import memory_of, simulate_gemm, simulate_launches
from megamoe_dsl.target import Target
from runtime.test_expert_training import DY, NAMES, assert_near, layer
from sweep import rarely

STAGES = ("route", "quantize_weights", "preactivations", "row_gradients", "token_gradients", "weight_gradients")
SMS = 4


def simulated(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    """Stages launch their kernels for this chip in the simulator."""
    target, counters = Target.typical(arch, SMS), torch.zeros(2, dtype=torch.int32)

    def chosen(problem: Any, *_: object, **options: str) -> Artifact:
        return artifact(choose(problem, target, 1, **options))

    def launch(kernel: Artifact, tensors: dict[str, torch.Tensor], numbers: dict[str, int]) -> None:
        given = {**numbers, **{name: one.data_ptr() for name, one in tensors.items()}}
        assert not simulate_launches(kernel, memory_of({}, {**tensors, "counters": counters}), given).findings

    def run_gemm(problem: Any, tensors: Any) -> None:
        assert not simulate_gemm(artifact(choose(problem, target, tensors.rows)), tensors).findings

    replaced = {"bind_context": lambda: None, "loaded_kernel": chosen, "launch_kernel": launch, "run_gemm": run_gemm}
    replaced["tile_counters"] = lambda _: SimpleNamespace(address=counters.data_ptr)
    for name, one in replaced.items():
        monkeypatch.setattr(device_gradients, name, one)
    for name in ("loaded_kernel", "launch_kernel", "run_gemm"):
        monkeypatch.setattr(k_grouped_gemm, name, replaced[name])
    for name in ("check_current", "_on_cpu"):
        monkeypatch.setattr(k_grouped_gemm, name, lambda *_: False)
    for name in STAGES:
        monkeypatch.setattr(expert_gradients, name, getattr(device_gradients, name))


def gradients(**more: Any) -> dict[str, torch.Tensor]:
    given = layer(*NAMES)
    moe(**given, **more).backward(DY)
    return {name: given[name].grad for name in NAMES}


@pytest.mark.parametrize(
    ("arch", "how"),
    [
        rarely("sm_90a", {}),
        rarely("sm_90a", {"recipe": "fp8xfp8"}),
        ("sm_100a", {}),
        rarely("sm_100a", {"recompute": True, "gate_up": "interleaved"}),
    ],
)
def test_gradients_are_the_references(arch: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """But for an approximate sigmoid, and on Blackwell another order of sums; an expert without rows, a masked slot."""
    expected = gradients(**how)
    with monkeypatch.context() as patch:
        simulated(patch, arch)
        found = gradients(**how)
    assert_near(found, {name: one.double() for name, one in expected.items()}, 2e-3)


def test_weight_gradients_are_added_to_fp32_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = torch.ones(4, 256, 256), torch.ones(4, 256, 128)
    expected = gradients()
    simulated(monkeypatch, "sm_100a")
    given = layer("w1", "w2")
    moe(**given, main_grads=totals).backward(DY)
    assert given["w1"].grad is None and given["w2"].grad is None
    assert_near({name: total - 1 for name, total in zip(("w1", "w2"), totals, strict=True)}, {k: v.double() for k, v in expected.items()})
