"""What callers need not say: default values of public classes and functions, of problems and of configurations."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from inspect import signature
from typing import Any

import pytest
import torch

from megamoe_dsl.sim.interfaces import Assumptions

DEFAULTS: dict[str, dict[str, Any]] = {
    "Artifact": {"line_info": False},
    "ExpertLayer": {
        "gate_up": "gate_first",
        "activation": "silu",
        "recipe": "fp8xfp8",
        "preactivations": False,
        "biases": "",
        "indices": "i64",
        "weights": "f32",
    },
    "ExportedKernel": {"any_sources": False},
    "GemmConfig": {
        "num_sms": 132,
        "warpgroups": 0,
        "cluster": 1,
        "group_m": 8,
        "swap_ab": False,
        "half_tiles": False,
        "k_in_flight": 1,
        "dynamic_schedule": False,
        "num_stages": 0,
        "epilogue_buffers": 2,
        "split_k": False,
        "burst": 1,
        "prefetch_weights": False,
        "trace": False,
        "most_columns": 0,
    },
    "GemmProblem": {
        "kind": "dense",
        "num_groups": 1,
        "output": "bf16",
        "accumulate": False,
        "recipe": "fp8xfp8",
        "biases": "",
        "transposed_b": False,
        "b_rows": 0,
    },
    "MegaMoE": {"bounds": (), "bf16_inputs": True, "reserved_sms": 0, "watchdog_ns": 60_000_000_000, "fused": True, "shared_experts": 0},
    "MegaMoeConfig": {"num_stages": 0, "trace": False},
    "MoE": {"tokens": 0},
    "Problem": {
        "num_ranks": 1,
        "max_tokens_per_rank": 128,
        "recipe": "fp8xfp4",
        "fast_math": True,
        "combine": "bf16",
        "activation": "silu",
        "biases": False,
        "weigh_results": False,
    },
    "Router": {"scores": "softmax", "groups": 1, "topk_groups": 1, "scale": 1.0},
    "runtime.simulated.SimulatedRanks": {"seed": 0, "race": True, "watchdog_ns": 1_000_000_000_000},
    "Sm100Config": {"num_stages": 0, "trace": False, "block_k": 0},
    "Sm90Config": {"num_stages": 0, "trace": False, "cluster": 1},
    "SymmetricBuffer": {"reference": False, "num_sms": 0},
    "check_weights": {"finite": False},
    "compile_kernel": {"line_info": False},
    "gemm": {"out_dtype": torch.bfloat16, "accumulate": False, "batch_invariant": False},
    "gemm_weights": {"gate_up": ""},
    "grouped_gemm": {"kind": "packed", "out_dtype": torch.bfloat16, "accumulate": False, "batch_invariant": False},
    "k_grouped_gemm": {"out_dtype": torch.bfloat16},
    "load_experts": {"rank": 0, "start": 0, "expand": False, "ignore_biases": False},
    "moe": {
        "scores": "softmax",
        "groups": 1,
        "topk_groups": 1,
        "weight_scale": 1.0,
        "replica_shift": 0,
        "gate_up": "gate_first",
        "activation": "silu",
        "recompute": False,
    },
    "quantize_both": {"rows": True, "recipe": "fp8xfp8"},
    "quantize_e2m1": {"block": 32, "check": True},
    "quantize_e4m3": {"block": 32, "check": True},
    "quantize_e4m3_f32": {"block": 128, "check": True},
    "quantize_experts": {"recipe": "fp8xfp8"},
    "random_case": {"mask": 0.0, "skew": False, "exact": True},
    "random_inputs": {"device": "cpu", "mask": 0.0, "skew": False, "exact": False},
    "random_weights": {"device": "cpu", "exact": False},
    "top_experts": {"scores": "softmax", "groups": 1, "topk_groups": 1, "scale": 1.0, "replica_shift": 0},
    "blocks.gemm.problem.GatherGemmProblem": {
        "kind": "packed",
        "num_groups": 1,
        "output": "bf16",
        "accumulate": False,
        "recipe": "fp8xfp8",
        "biases": "",
        "transposed_b": False,
        "b_rows": 0,
        "gate_up": "",
        "preactivations": False,
        "gradient": "",
        "source": "gathered",
        "result": "packed",
        "activation": "silu",
        "fast_math": True,
    },
    "blocks.gemm.problem.VarlenKProblem": {
        "kind": "packed",
        "num_groups": 1,
        "output": "bf16",
        "accumulate": False,
        "recipe": "bf16xbf16",
        "biases": "",
        "transposed_b": False,
        "b_rows": 0,
        "gathered": "right",
    },
    "kernels.expert_routing.problem.QuantizeProblem": {
        "gathered": False,
        "rows": True,
        "recipe": "fp8xfp8",
        "matrix_rows": 0,
        "columns": True,
    },
    "kernels.expert_routing.problem.QuantizeWeightsProblem": {"transposed": False},
    "kernels.expert_routing.problem.RoutingProblem": {"recipe": "fp8xfp8"},
    "kernels.expert_routing.problem.SumProblem": {"weights": "f32", "width": 0},
    "kernels.expert_routing.problem.TopExpertsProblem": {
        "scores": "softmax",
        "logits": "f32",
        "biased": False,
        "groups": 1,
        "topk_groups": 1,
        "scale": 1.0,
        "hashed": False,
        "replicas": 0,
    },
    "kernels.decode.problem.DecodeProblem": {
        "gate_up": "gate_first",
        "activation": "silu",
        "recipe": "fp8xfp8",
        "fast_math": True,
        "weigh_results": True,
    },
    "kernels.decode.config.DecodeConfig": {"num_stages": 0, "indices": "i64", "weights": "f32"},
    "kernels.expert_routing.config.RouteConfig": {"arch_name": "sm_90a", "sorters": 1, "slots_per_sorter": 4096, "indices": "i64"},
    "kernels.expert_routing.config.TokensConfig": {"arch_name": "sm_90a"},
    "kernels.moe.inputs_config.PreDispatchConfig": {"quantized": False, "shared": 0},
    "kernels.moe.unfused.config.StageConfig": {"num_stages": 0},
    "blocks.gemm.sm100.config.Sm100GemmConfig": {
        "num_sms": 148,
        "block_k": 0,
        "group_m": 8,
        "dynamic_schedule": False,
        "num_stages": 0,
        "consumers": 1,
        "pairs": 1,
        "trace": False,
    },
    "activation.Activation": {"slope": 1.0, "up_offset": 0.0},
    "sim.run": {
        "ranks": 1,
        "seed": 0,
        "races": True,
        "arch": "sm_100a",
        "num_sms": 4,
        "buffers": (),
        "outputs": (),
        "max_delay": 3,
        "assumptions": Assumptions(),
        "most_instructions": 100_000_000,
    },
    "testing.problems": {
        "max_hidden": 7168,
        "max_intermediate": 4096,
        "max_experts_per_rank": 64,
        "max_topk": 32,
        "max_ranks": 128,
        "max_tokens": 2048,
        "whole_tiles": True,
    },
    "testing.configs": {"max_sms": 132},
    "testing.configs_sm90": {"max_sms": 132},
    "testing.configs_sm100": {"max_sms": 148},
    "testing.check_schedules": {"seeds": range(3)},
    "compat.deep_gemm.fp8_fp4_mega_moe": {
        "recipe": (1, 1, 32),
        "activation": "swiglu",
        "fast_math": True,
        "use_x_scales": False,
        "weight_layout": "megamoe",
        "post_expert_norm": False,
        "post_expert_norm_eps": 1e-06,
        "post_expert_norm_weight_first": False,
    },
    "compat.deep_gemm.fp8_mega_moe": {"recipe": (128, 128, 128), "activation": "swiglu", "fast_math": True},
    "compat.deep_gemm.get_symm_buffer_for_mega_moe": {
        "num_shared_experts": 0,
        "mma_type": "fp8xfp4",
        "activation": "swiglu",
        "combine": "bf16",
        "watchdog_ns": 60_000_000_000,
    },
    "compat.deep_gemm.get_symm_buffer_for_sm90_mega_moe": {"use_fp8_dispatch": True, "activation": "swiglu", "mma_type": "fp8xfp8"},
    "compat.deep_gemm.mega_moe_pre_dispatch": {"group_size": 32, "mma_type": "fp8xfp4"},
    "compat.deep_gemm.mega_moe_pre_dispatch_sm90": {"group_size": 128, "routed_scaling_factor": 1.0},
    "compat.deep_gemm.transform_sf_into_required_layout": {"disable_ue8m0_cast": False},
    "compat.deep_gemm.transform_weights_for_mega_moe": {"activation": "swiglu", "mma_type": "fp8xfp4"},
    "compat.deep_gemm.utils.per_token_cast_to_fp4": {"gran_k": 128, "use_packed_ue8m0": False},
    "compat.deep_gemm.utils.per_token_cast_to_fp8": {"gran_k": 128, "use_packed_ue8m0": False},
}
"""By name in `megamoe_dsl`; all others are None."""
ASSUMPTIONS = {
    "leader": 0,
    "lockstep": True,
    "late_loads": False,
    "tensor_fences": False,
    "tensor_waits": False,
    "load_uninitialized": False,
    "store_uninitialized": False,
}


def defaults(name: str) -> dict[str, Any]:
    module, _, last = f"megamoe_dsl.{name}".rpartition(".")
    found = getattr(import_module(module), last)
    if is_dataclass(found):
        return {one.name: one.default for one in fields(found) if one.init and one.default not in (MISSING, None)}
    every = {one.name: one.default for one in signature(found).parameters.values() if one.default is not one.empty}
    return {one: value for one, value in every.items() if value is not None}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_not_said_is_the_usual(name: str) -> None:
    assert defaults(name) == DEFAULTS[name]


def test_a_simulator_assumes_the_usual() -> None:
    assert defaults("sim.interfaces.Assumptions") == ASSUMPTIONS
