"""Both passes of `moe` as kernels in the simulator, on CPU tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.kernels.registry import choose
from megamoe_dsl.runtime import device_gradients, expert_gradients, experts, k_grouped_gemm
from megamoe_dsl.runtime.expert_call import ExpertCall
from megamoe_dsl.runtime.simulated import memory_of, simulate_gemm
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_experts import simulate_experts, simulate_launches

STAGES = ("route", "quantize_weights", "preactivations", "row_gradients", "token_gradients", "weight_gradients")


def simulate_stages(patch: pytest.MonkeyPatch, arch: str) -> list[object]:
    """From now on layers and stages launch kernels of this architecture; the configurations that will have run."""
    ran: list[object] = []
    target, counter = Target(Target.typical(arch).arch, 4), torch.zeros(64, dtype=torch.int32)

    def run_gemm(problem: GemmProblem, tensors: Any) -> None:
        ran.append(config := choose(problem, target, tensors.rows))
        assert not simulate_gemm(artifact(config), tensors).findings

    def launch_kernel(config: Any, tensors: dict[str, torch.Tensor], numbers: dict[str, int]) -> None:
        ran.append(config)
        given = {**numbers, **{name: one.data_ptr() for name, one in tensors.items()}}
        assert not simulate_launches(artifact(config), memory_of({}, {**tensors, "counter": counter}), given).findings

    def layer(call: ExpertCall) -> torch.Tensor:
        ran.extend(configs := call.layer.configs(target, call.tokens))
        y, reports = simulate_experts([artifact(config) for config in configs], call)
        assert not any(report.findings for report in reports)
        return y

    loaded = {
        "run_gemm": run_gemm,
        "launch_kernel": launch_kernel,
        "loaded_kernel": lambda device, kind, *fields, **options: choose(kind(*fields), target, 1, **options),
    }
    for module in (device_gradients, k_grouped_gemm):
        for name, function in loaded.items():
            patch.setattr(module, name, function)
    patch.setattr(experts, "layer_on_cpu", layer)
    patch.setattr(device_gradients, "bind_context", lambda: None)
    patch.setattr(device_gradients, "tile_counters", lambda _: SimpleNamespace(address=counter.data_ptr))
    patch.setattr(k_grouped_gemm, "quantize_columns", k_grouped_gemm._quantize_on_gpu)
    for module in (k_grouped_gemm, expert_gradients):
        patch.setattr(module, "add_columns", k_grouped_gemm._add_on_gpu)
    patch.setattr(k_grouped_gemm, "check_current", lambda *_: None)
    for name in STAGES:
        patch.setattr(expert_gradients, name, getattr(device_gradients, name))
    return ran
