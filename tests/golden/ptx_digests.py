"""Digests of the PTX of golden configurations, without names, comments and line information: equal ones are the same instructions.

A line of ptx_digests.txt has that digest, one of what the DSL has traced (kernel_digests.py), and a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import golden_figures as figures
from kernel_digests import digest, traced_digest
from unconverged import assert_converged

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import BF16 as BF16_OUTPUT
from megamoe_dsl.blocks.gemm.problem import F32, GatherGemmProblem, GemmProblem, VarlenKProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.kernels.expert_layer import ExpertLayer, uneven_config
from megamoe_dsl.kernels.expert_routing.config import RouteConfig, TokensConfig
from megamoe_dsl.kernels.expert_routing.problem import QuantizeProblem, QuantizeWeightsProblem, SumProblem, TopExpertsProblem
from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.kernels.moe.family import PreDispatchKernel
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, EpConfig, GemmCombineConfig, RoutingTablesConfig
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.kernels.moe.unfused.family import STAGES, stage_configs
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem

FILE = Path(__file__).parent / "ptx_digests.txt"


def _sm100(**problem: float | bool | int | str) -> Sm100Config:
    return choose(PRESETS["flash"].problem(128, **problem), Target.typical("sm_100a", 132), 128)


def _sm90(num_tokens: int, trace: bool = False, **problem: float | bool | int | str) -> Sm90Config:
    return choose(PRESETS["flash"].problem(8192, recipe="fp8xfp8", **problem), Target.typical("sm_90a"), num_tokens, trace=trace)


def _quantized(preset: str, arch: str, recipe: str) -> PreDispatchConfig:
    return PreDispatchKernel().choose(PRESETS[preset].problem(128, recipe=recipe), Target.typical(arch), 0, quantized=True)


def _packed_inputs(recipe: str) -> PreDispatchConfig:
    return PreDispatchKernel().choose(PRESETS["flash"].problem(128, recipe=recipe), Target.typical("sm_100a"), 0)


def _pre_dispatch_odd(**fields: bool | int) -> PreDispatchConfig:
    return PreDispatchKernel().choose(GPT_OSS.problem(128, **ODD), Target.typical("sm_100a"), 0, **fields)


def _ring(num_tokens: int, **problem: bool | int | str) -> Sm90Config:
    return choose(PRESETS["flash"].problem(8192, recipe="fp8xfp8", **problem), Target.typical("sm_90a"), num_tokens, pool_rows=8192)


GPT_OSS = PRESETS["gpt-oss-20b"]
ODD = {"num_experts": 105, "num_ranks": 3, "topk": 5}
MANY_RANKS = Problem(7168, 16384, 128, 32, num_ranks=128, max_tokens_per_rank=256, recipe="fp8xfp8")
PROJECTION = GemmProblem(2112, 7168)
FP4 = GemmProblem(2112, 7168, recipe="fp8xmxfp4")
BF16 = GemmProblem(2112, 7168, recipe="bf16xbf16")
SUMS_FP8 = VarlenKProblem(4096, 7168, num_groups=32, recipe="fp8xfp8", gathered="")


def _gemm(block_m: int, block_n: int, problem: GemmProblem = PROJECTION, **fields: bool | int) -> Callable[[], KernelConfig]:
    return lambda: GemmConfig(problem, block_m, block_n, **fields)


def _pair_gemm(block_m: int, recipe: str, problem: Mapping[str, Any] = {}, **fields: bool | int) -> Callable[[], KernelConfig]:
    return lambda: Sm100GemmConfig(GemmProblem(2112, 7168, recipe=recipe, **problem), block_m, **fields)


def _gather(block_m: int, block_n: int, problem: Mapping[str, Any] = {}, **fields: bool | int) -> Callable[[], KernelConfig]:
    return lambda: GemmConfig(GatherGemmProblem(4096, 7168, num_groups=256, **problem), block_m, block_n, **fields)


def _pair_gather(
    block_m: int, recipe: str = "fp8xfp4", consumers: int = 1, pairs: int = 1, trace: bool = False, **problem: Any
) -> Callable[[], KernelConfig]:
    of_rows = GatherGemmProblem(4096, 7168, num_groups=256, recipe=recipe, **problem)
    return lambda: Sm100GemmConfig(of_rows, block_m, dynamic_schedule=True, consumers=consumers, pairs=pairs, trace=trace)


EXPERT_LAYER = ExpertLayer(7168, 2048, 256, 8)
BF16_LAYER = replace(EXPERT_LAYER, recipe="bf16xbf16")
GPT_OSS_LAYER = ExpertLayer(2880, 2880, 32, 4, "interleaved", "swigluoai", "bf16xbf16", biases="bf16")
ODD_LAYER = replace(GPT_OSS_LAYER, hidden=2912, gate_up="up_first", biases="")
HASH_ROUTER = TopExpertsProblem(256, 6, "sqrtsoftplus", scale=1.5, hashed=True, replicas=4)
DEEPSEEK_ROUTER = TopExpertsProblem(256, 8, "sigmoid", biased=True, groups=8, topk_groups=4, scale=2.5)


def _activated(gate_up: str) -> Callable[[], KernelConfig]:
    return lambda: GemmConfig(replace(EXPERT_LAYER, gate_up=gate_up).fc1, 128, 256, cluster=2, dynamic_schedule=True)


def _backward(name: str, output: str = BF16_OUTPUT, arch: str = "sm_90a", kind: str = "packed", **fields: str) -> Any:
    """A GEMM of the layer's backward pass."""

    def make() -> KernelConfig:
        problem = getattr(replace(BF16_LAYER, **fields).backward(output, kind), name)
        return choose(problem, Target.typical(arch), 4096)

    return make


def _packed(block_m: int, **fields: int) -> Sm90Config:
    return choose(PRESETS["flash"].problem(8192, recipe="fp8xmxfp4"), Target.typical("sm_90a"), 128, block_m=block_m, **fields)


def _bf16(num_tokens: int, **fields: int) -> Sm90Config:
    return choose(PRESETS["flash"].problem(8192, recipe="bf16xbf16"), Target.typical("sm_90a"), num_tokens, **fields)


def _stage(number: int) -> Callable[[], KernelConfig]:
    return lambda: stage_configs(_sm90(8192))[number]


def _stage_sm100(recipe: str, number: int) -> Callable[[], KernelConfig]:
    return lambda: stage_configs(choose(PRESETS["flash"].problem(8192, recipe=recipe), Target.typical("sm_100a"), 512))[number]


def _ep(kind: type[EpConfig], preset: str, recipe: str = "fp8xfp8", **fields: Any) -> Callable[[], KernelConfig]:
    return lambda: kind(PRESETS[preset].problem(8192, recipe=recipe), **fields)


def _golden(arch: str, preset: str, block_m: int) -> Callable[[], KernelConfig]:
    return lambda: figures.config_of(arch, preset, block_m)


CASES: dict[str, Callable[[], KernelConfig]] = {
    **{path.stem: _golden(*case) for case in figures.CASES for path in [figures.path_of(*case)]},
    "sm_100a-one-rank-clamped-precise": lambda: _sm100(num_ranks=1, num_experts=32, activation_clamp=10.0, fast_math=False),
    "sm_100a-many-experts": lambda: _sm100(num_ranks=2, num_experts=256, topk=32),
    "sm_90a-one-rank-clamped-precise": lambda: _sm90(512, num_ranks=1, num_experts=32, activation_clamp=10.0, fast_math=False),
    "sm_90a-traced-rows": lambda: _sm90(2048, trace=True),
    "sm_90a-traced-columns": lambda: _sm90(8, trace=True),
    "sm_90a-tuned-8192": lambda: _sm90(8192),
    "sm_90a-situ-columns": lambda: _sm90(64, activation="situ"),
    "sm_90a-swigluoai-rows": lambda: _sm90(2048, activation="swigluoai"),
    "sm_100a-situ": lambda: _sm100(activation="situ"),
    "sm_90a-biases-columns": lambda: _sm90(64, biases=True),
    "sm_90a-biases-rows": lambda: _sm90(2048, biases=True, weigh_results=True),
    "sm_100a-biases": lambda: _sm100(biases=True, weigh_results=True),
    "sm_90a-packed-m8": lambda: _packed(8),
    "sm_90a-packed-m64": lambda: _packed(64),
    "sm_90a-packed-m128": lambda: _packed(128),
    "sm_90a-packed-pairs": lambda: _packed(128, cluster=2),
    "sm_90a-bf16-columns": lambda: _bf16(8),
    "sm_90a-bf16-rows": lambda: _bf16(8192),
    "sm_90a-bf16-pre-dispatch": lambda: PreDispatchKernel().choose(_bf16(8).problem, Target.typical("sm_90a"), 0),
    "sm_100a-pre-dispatch": lambda: PreDispatchKernel().choose(PRESETS["flash"].problem(128), Target.typical("sm_100a"), 0),
    "sm_90a-gemm-rows": _gemm(128, 256, k_in_flight=1),
    "sm_90a-gemm-pairs": _gemm(192, 128, cluster=2),
    "sm_90a-gemm-ahead": _gemm(64, 32, warpgroups=1, k_in_flight=8),
    "sm_90a-gemm-two-splits": _gemm(128, 192, cluster=2, dynamic_schedule=True),
    "sm_90a-gemm-swapped": _gemm(16, 128, swap_ab=True, k_in_flight=2),
    "sm_90a-gemm-packed-pairs": lambda: uneven_config(EXPERT_LAYER.fc2, Target.typical("sm_90a"), 1 << 17),
    "sm_90a-gemm-bf16-packed-pairs": lambda: uneven_config(BF16_LAYER.fc2, Target.typical("sm_90a"), 1 << 17),
    "sm_90a-gemm-packed": _gemm(128, 256, GemmProblem(4096, 4096, "packed", 32), half_tiles=True, dynamic_schedule=True),
    "sm_90a-gemm-weights-first": _gemm(
        16, 128, GemmProblem(4096, 4096, "packed", 32), swap_ab=True, k_in_flight=2, dynamic_schedule=True, prefetch_weights=True
    ),
    "sm_90a-gemm-masked": _gemm(64, 256, GemmProblem(4096, 4096, "masked", 256)),
    "sm_90a-gemm-split-k": _gemm(64, 64, warpgroups=1, cluster=2, split_k=True, k_in_flight=4),
    "sm_90a-gemm-accumulate": _gemm(128, 128, GemmProblem(2112, 7168, output="f32", accumulate=True)),
    "sm_90a-gemm-bf16": _gemm(128, 256, BF16, cluster=2),
    "sm_90a-gemm-packed-bursts": _gemm(
        16, 128, GemmProblem(7168, 2048, "packed", 256), swap_ab=True, k_in_flight=2, dynamic_schedule=True, burst=2
    ),
    "sm_90a-gemm-bf16-packed": _gemm(
        128, 256, GemmProblem(4096, 4096, "packed", 32, recipe="bf16xbf16"), half_tiles=True, dynamic_schedule=True
    ),
    "sm_90a-gemm-bf16-swapped": _gemm(16, 128, BF16, swap_ab=True),
    "sm_90a-gemm-decoding": _gemm(64, 256, FP4, swap_ab=True),
    "sm_90a-gemm-decoding-split-k": _gemm(16, 128, FP4, swap_ab=True, cluster=2, split_k=True),
    "sm_90a-gemm-decoded": _gemm(256, 128, FP4),
    "sm_90a-gemm-decoded-halves": _gemm(
        128, 256, GemmProblem(4096, 4096, "packed", 32, recipe="fp8xmxfp4"), half_tiles=True, dynamic_schedule=True, epilogue_buffers=1
    ),
    "sm_90a-gemm-decoding-packed": _gemm(
        32, 64, GemmProblem(4096, 4096, "packed", 32, recipe="fp8xmxfp4"), swap_ab=True, dynamic_schedule=True
    ),
    "sm_90a-gather-gemm": _gather(128, 256, half_tiles=True, dynamic_schedule=True),
    "sm_90a-gather-gemm-swapped": _gather(16, 128, {"result": "blocked"}, swap_ab=True, k_in_flight=2, dynamic_schedule=True),
    "sm_90a-gather-gemm-sorted": _gather(128, 128, {"source": "packed", "result": "blocked"}, k_in_flight=2),
    **{f"sm_90a-gather-gemm-{one.replace('_', '-')}": _activated(one) for one in ("gate_first", "up_first", "interleaved")},
    "sm_90a-gather-gemm-gate-first-bursts": lambda: GemmConfig(EXPERT_LAYER.fc1, 64, 256, warpgroups=1, dynamic_schedule=True, burst=2),
    "sm_90a-gather-gemm-stored": lambda: GemmConfig(replace(EXPERT_LAYER, preactivations=True).fc1, 128, 256, dynamic_schedule=True),
    "sm_90a-gather-gemm-bf16": _gather(128, 256, {"recipe": "bf16xbf16"}, half_tiles=True, dynamic_schedule=True),
    "sm_90a-gather-gemm-bf16-gate-first": lambda: GemmConfig(BF16_LAYER.fc1, 128, 256, cluster=2, dynamic_schedule=True),
    "sm_90a-gather-gemm-bf16-interleaved": lambda: GemmConfig(replace(BF16_LAYER, gate_up="interleaved").fc1, 64, 256, warpgroups=1),
    "sm_90a-gather-gemm-bf16-biases": lambda: GemmConfig(GPT_OSS_LAYER.fc1, 64, 256, warpgroups=1, dynamic_schedule=True),
    "sm_90a-gemm-bf16-packed-biases": lambda: GemmConfig(GPT_OSS_LAYER.fc2, 16, 128, swap_ab=True, dynamic_schedule=True),
    **{f"sm_90a-backward-{name}": _backward(name) for name in ("rows", "tokens", "w1", "w2")},
    **{f"sm_90a-backward-{name}-f32": _backward(name, F32) for name in ("w1", "w2")},
    "sm_90a-backward-rows-fp8": _backward("rows", recipe="fp8xfp8"),
    "sm_90a-backward-rows-interleaved": _backward("rows", gate_up="interleaved", activation="swigluoai"),
    "sm_90a-sums-fp8": _gemm(128, 128, SUMS_FP8, dynamic_schedule=True),
    "sm_90a-sums-fp8-f32-pairs": _gemm(128, 128, replace(SUMS_FP8, output=F32, accumulate=True), dynamic_schedule=True, cluster=2),
    "sm_90a-quantize-both": lambda: TokensConfig(QuantizeProblem(7168), 528),
    **{
        f"sm_90a-quantize-weights{'-transposed' * turned}": lambda turned=turned: TokensConfig(
            QuantizeWeightsProblem(4096, 7168, turned), 528
        )
        for turned in (False, True)
    },
    "sm_90a-quantize-both-gathered": lambda: TokensConfig(QuantizeProblem(2048, gathered=True, rows=False), 528),
    "sm_90a-top-experts": lambda: TokensConfig(DEEPSEEK_ROUTER, 132),
    "sm_90a-top-experts-hashed": lambda: TokensConfig(HASH_ROUTER, 132),
    "sm_90a-route": lambda: RouteConfig(EXPERT_LAYER.routing, 132, sorters=32),
    "sm_90a-route-bf16": lambda: RouteConfig(BF16_LAYER.routing, 132, sorters=32),
    "sm_90a-topk-sum": lambda: TokensConfig(SumProblem(EXPERT_LAYER.hidden, EXPERT_LAYER.topk), 132),
    "sm_90a-route-i32": lambda: RouteConfig(GPT_OSS_LAYER.routing, 132, indices="i32"),
    "sm_90a-topk-sum-bf16": lambda: TokensConfig(SumProblem(GPT_OSS_LAYER.hidden, GPT_OSS_LAYER.topk, "bf16"), 132),
    "sm_100a-gemm-w4a8": _pair_gemm(192, "fp8xfp4"),
    "sm_100a-gemm-w4a4-masked": _pair_gemm(64, "mxf4xmxf4", {"kind": "masked", "num_groups": 32}, block_k=256, dynamic_schedule=True),
    "sm_100a-gemm-w4a4-accumulate": _pair_gemm(32, "mxf4xmxf4", {"output": "f32", "accumulate": True}),
    "sm_100a-gemm-mxfp8": _pair_gemm(128, "mxfp8xmxfp8"),
    "sm_100a-gemm-nvfp4": _pair_gemm(128, "nvfp4xnvfp4", block_k=256),
    "sm_100a-gemm-bf16": _pair_gemm(256, "bf16xbf16"),
    "sm_100a-gemm-bf16-packed": _pair_gemm(64, "bf16xbf16", {"kind": "packed", "num_groups": 32}, dynamic_schedule=True),
    "sm_100a-gather-gemm": _pair_gather(192, result="blocked"),
    "sm_100a-gather-gemm-w4a4": _pair_gather(64, "mxf4xmxf4"),
    "sm_100a-gather-gemm-sorted": _pair_gather(128, source="packed"),
    "sm_100a-gather-gemm-gate-first": _pair_gather(128, gate_up="gate_first", output="e4m3"),
    "sm_100a-gather-gemm-w4a4-interleaved": _pair_gather(64, "mxf4xmxf4", gate_up="interleaved", output="e2m1"),
    "sm_100a-gather-gemm-two-consumers": _pair_gather(192, consumers=2, gate_up="gate_first", output="e4m3"),
    "sm_100a-gather-gemm-two-pairs": _pair_gather(256, pairs=2),
    "sm_100a-gather-gemm-stored": _pair_gather(128, gate_up="up_first", output="e4m3", preactivations=True),
    "sm_100a-gather-gemm-nvfp4": _pair_gather(64, "nvfp4xnvfp4"),
    "sm_100a-gather-gemm-nvfp4-gate-first": _pair_gather(64, "nvfp4xnvfp4", gate_up="gate_first"),
    "sm_100a-gather-gemm-bf16": _pair_gather(256, "bf16xbf16", consumers=2, result="blocked"),
    "sm_100a-gather-gemm-bf16-gate-first": _pair_gather(128, "bf16xbf16", consumers=2, gate_up="gate_first"),
    "sm_100a-gather-gemm-bf16-sorted-pairs": _pair_gather(64, "bf16xbf16", pairs=2, source="packed"),
    "sm_100a-gather-gemm-nvfp4-quantized": _pair_gather(128, "nvfp4xnvfp4", gate_up="gate_first", output="e2m1"),
    **{f"sm_100a-backward-{name}": _backward(name, arch="sm_100a") for name in ("rows", "tokens", "w1", "w2")},
    "sm_100a-backward-w1-f32": _backward("w1", F32, "sm_100a"),
    **{f"{arch}-backward-w2-aligned": _backward("w2", arch=arch, kind="aligned") for arch in ("sm_90a", "sm_100a")},
    "sm_100a-backward-rows-interleaved": _backward("rows", arch="sm_100a", gate_up="interleaved", activation="swigluoai"),
    "sm_100a-backward-rows-mxfp8": _backward("rows", arch="sm_100a", recipe="mxfp8xmxfp8"),
    "sm_100a-backward-w1-mxfp8": _backward("w1", arch="sm_100a", recipe="mxfp8xmxfp8"),
    "sm_100a-quantize-both-mxfp8": lambda: TokensConfig(QuantizeProblem(7168, True, recipe="mxfp8xmxfp8"), 592, arch_name="sm_100a"),
    **{
        f"sm_100a-quantize-weights-mxfp8{'-transposed' * turned}": lambda turned=turned: TokensConfig(
            QuantizeProblem(7168, rows=not turned, recipe="mxfp8xmxfp8", matrix_rows=4096, columns=turned), 592, arch_name="sm_100a"
        )
        for turned in (False, True)
    },
    "sm_100a-ep-dispatch-backward": lambda: DispatchGemmConfig(
        PRESETS["deepseek-v3"].problem(8192, recipe="bf16xbf16"), arch_name="sm_100a", transposed=True
    ),
    "sm_100a-route": lambda: RouteConfig(replace(EXPERT_LAYER, recipe="fp8xfp4").routing, 148, arch_name="sm_100a"),
    "sm_100a-route-nvfp4": lambda: RouteConfig(replace(EXPERT_LAYER, recipe="nvfp4xnvfp4").routing, 148, arch_name="sm_100a"),
    "sm_100a-topk-sum": lambda: TokensConfig(SumProblem(EXPERT_LAYER.hidden, EXPERT_LAYER.topk), 148, arch_name="sm_100a"),
    "sm_90a-pre-dispatch": lambda: PreDispatchKernel().choose(PRESETS["pro"].problem(128, recipe="fp8xfp8"), Target.typical("sm_90a"), 0),
    "sm_100a-pre-dispatch-quantized": lambda: _quantized("flash", "sm_100a", "fp8xfp4"),
    "sm_90a-pre-dispatch-quantized": lambda: _quantized("pro", "sm_90a", "fp8xfp8"),
    "sm_100a-mxf4xmxf4-pre-dispatch": lambda: _packed_inputs("mxf4xmxf4"),
    "sm_100a-nvfp4xnvfp4-pre-dispatch": lambda: _packed_inputs("nvfp4xnvfp4"),
    **{f"sm_90a-{stage.name.replace('_', '-')}": _stage(number) for number, stage in enumerate(STAGES)},
    "sm_100a-moe-fc1": _stage_sm100("fp8xfp4", 1),
    "sm_100a-moe-swiglu": _stage_sm100("fp8xfp4", 2),
    "sm_100a-mxf4xmxf4-moe-swiglu": _stage_sm100("mxf4xmxf4", 2),
    "sm_90a-moe-fc1-packed": lambda: stage_configs(_packed(16))[1],
    "sm_90a-moe-fc2-columns": lambda: stage_configs(_sm90(8))[3],
    "sm_90a-ep-dispatch": _ep(DispatchGemmConfig, "deepseek-v3"),
    "sm_90a-ep-dispatch-all-pairs": _ep(DispatchGemmConfig, "pro", token_saving=False, block_m=64, block_n=128),
    "sm_90a-ep-combine": _ep(GemmCombineConfig, "deepseek-v3"),
    "sm_90a-ep-dispatch-bf16": _ep(DispatchGemmConfig, "deepseek-v3", "bf16xbf16", cluster=2),
    "sm_90a-ep-combine-bf16": _ep(GemmCombineConfig, "deepseek-v3", "bf16xbf16", cluster=2),
    "sm_90a-ep-dispatch-backward": _ep(DispatchGemmConfig, "deepseek-v3", "bf16xbf16", transposed=True),
    "sm_90a-ep-combine-backward": _ep(GemmCombineConfig, "deepseek-v3", "bf16xbf16", transposed=True),
    "sm_90a-ep-dispatch-activated": _ep(DispatchGemmConfig, "deepseek-v3", "bf16xbf16", cluster=2, gate_up="activated"),
    "sm_90a-ep-dispatch-kept": _ep(DispatchGemmConfig, "deepseek-v3", "bf16xbf16", gate_up="activated", trains=True),
    "sm_90a-ep-dispatch-trains": _ep(DispatchGemmConfig, "deepseek-v3", "bf16xbf16", trains=True),
    "sm_90a-ep-dispatch-gradient": _ep(DispatchGemmConfig, "deepseek-v3", "bf16xbf16", gate_up="activated", transposed=True),
    "sm_100a-ep-dispatch-kept": _ep(DispatchGemmConfig, "deepseek-v3", "bf16xbf16", arch_name="sm_100a", gate_up="activated", trains=True),
    "sm_100a-ep-dispatch": _ep(DispatchGemmConfig, "deepseek-v3", "fp8xfp4", arch_name="sm_100a"),
    "sm_100a-mxf4xmxf4-ep-dispatch": _ep(DispatchGemmConfig, "flash", "mxf4xmxf4", arch_name="sm_100a"),
    "sm_100a-ep-dispatch-bf16": _ep(DispatchGemmConfig, "deepseek-v3", "bf16xbf16", arch_name="sm_100a"),
    "sm_100a-ep-combine": _ep(GemmCombineConfig, "deepseek-v3", "fp8xfp4", arch_name="sm_100a"),
    "sm_90a-decode": lambda: choose(EXPERT_LAYER.decode, Target.typical("sm_90a"), 1),
    "sm_90a-decode-packed": lambda: choose(replace(EXPERT_LAYER.decode, recipe="fp8xmxfp4"), Target.typical("sm_90a"), 1),
    "sm_90a-decode-bf16": lambda: choose(BF16_LAYER.decode, Target.typical("sm_90a"), 16),
    "sm_90a-routing-tables": lambda: RoutingTablesConfig(PRESETS["deepseek-v3"].problem(8192, recipe="fp8xfp8")),
    "sm_90a-ring-columns": lambda: _ring(64, combine="e4m3", weigh_results=True, intermediate=8192),
    "sm_90a-ring-rows": lambda: _ring(8192),
    "sm_90a-odd-columns": lambda: choose(GPT_OSS.problem(8192, recipe="fp8xfp8", combine="e4m3", **ODD), Target.typical("sm_90a"), 16),
    "sm_100a-odd": lambda: choose(GPT_OSS.problem(8192, **ODD, biases=True), Target.typical("sm_100a"), 128, trace=True),
    "sm_100a-odd-pre-dispatch-shared": lambda: _pre_dispatch_odd(shared=1),
    "sm_100a-odd-pre-dispatch-quantized": lambda: _pre_dispatch_odd(quantized=True),
    "sm_90a-many-ranks": lambda: choose(MANY_RANKS, Target.typical("sm_90a"), 16),
    "sm_90a-biases-weighed-rows": lambda: _sm90(2048, biases=True),
    "sm_90a-ep-dispatch-tail": _ep(DispatchGemmConfig, "deepseek-v3", tail_sms=32, trace=True),
    "sm_90a-ep-dispatch-expert-wise": _ep(DispatchGemmConfig, "deepseek-v3", block_wise=False, token_sorting=False),
    "sm_90a-ep-combine-serial": _ep(GemmCombineConfig, "deepseek-v3", interleaved=False, token_blocks=2, trace=True),
    "sm_90a-ep-combine-fetched": _ep(GemmCombineConfig, "deepseek-v3", scatter=False, trace=True),
    "sm_100a-ep-combine-serial": _ep(GemmCombineConfig, "deepseek-v3", "fp8xfp4", arch_name="sm_100a", interleaved=False, trace=True),
    "sm_100a-gather-gemm-bf16-stored": _pair_gather(64, "bf16xbf16", gate_up="interleaved", preactivations=True, trace=True),
    **{
        f"sm_90a-gather-gemm-bf16-stored-{one.replace('_', '-')}": lambda one=one: GemmConfig(
            replace(GPT_OSS_LAYER, hidden=2912, preactivations=True, gate_up=one).fc1, 128, 256, dynamic_schedule=True, trace=True
        )
        for one in ("gate_first", "interleaved")
    },
    "sm_100a-ep-combine-fetched": _ep(GemmCombineConfig, "deepseek-v3", "fp8xfp4", arch_name="sm_100a", scatter=False),
    "sm_90a-routing-tables-unsorted": lambda: RoutingTablesConfig(
        PRESETS["deepseek-v3"].problem(512, recipe="fp8xfp8"), token_saving=False, token_sorting=False
    ),
    **{
        f"sm_90a-gemm-swapped-{'accumulate' if adds else 'f32'}": _gemm(
            24, 128, GemmProblem(2112, 7168, output="f32", accumulate=adds), swap_ab=True
        )
        for adds in (False, True)
    },
    "sm_90a-gemm-bf16-packed-biases-f32": lambda: GemmConfig(replace(GPT_OSS_LAYER, biases="f32").fc2, 128, 256, dynamic_schedule=True),
    "sm_90a-gather-gemm-blocked": _gather(128, 256, {"source": "blocked"}, dynamic_schedule=True),
    "sm_100a-backward-rows-up-first": _backward("rows", arch="sm_100a", gate_up="up_first"),
    "sm_90a-moe-combine-e4m3": lambda: stage_configs(_sm90(8192, combine="e4m3"))[-1],
    "sm_90a-gather-gemm-odd": _gather(40, 128, swap_ab=True, dynamic_schedule=True),
    "sm_90a-gemm-contiguous": _gemm(128, 72, GemmProblem(4096, 4096, "contiguous", 32)),
    "sm_90a-gemm-aligned": _gemm(64, 96, GemmProblem(4000, 512, "aligned", 33, output="f32")),
    "sm_90a-backward-rows-situ": _backward("rows", activation="situ", gate_up="up_first"),
    "sm_90a-decode-weighed": lambda: replace(
        choose(replace(ODD_LAYER.decode, weigh_results=False), Target.typical("sm_90a"), 1), indices="i32", weights="bf16"
    ),
    **{
        f"sm_90a-top-experts-softmax{'-hashed' * hashed}": lambda hashed=hashed: TokensConfig(
            TopExpertsProblem(72, 6, "softmax", "bf16", hashed=hashed), 132
        )
        for hashed in (False, True)
    },
}
"""By name: the golden figures' configurations, and some that have other code."""
RARELY = {
    "sm_100a-flash-m16", "sm_100a-flash-m32", "sm_100a-flash-m96", "sm_100a-flash-m128", "sm_100a-flash-m192", "sm_90a-flash-m8",
    "sm_90a-flash-m32", "sm_90a-flash-m128", "sm_100a-pro-m16", "sm_100a-pro-m64", "sm_100a-pro-m192", "sm_90a-pro-m16",
    "sm_100a-mxf4xmxf4-flash-m32", "sm_100a-mxf4xmxf4-flash-m192", "sm_100a-mxfp8xmxfp8-flash-m96", "sm_100a-e4m3-results-flash-m96",
    "sm_90a-one-rank-clamped-precise", "sm_90a-traced-rows", "sm_90a-tuned-8192", "sm_90a-swigluoai-rows", "sm_100a-situ", "sm_100a-biases",
    "sm_90a-packed-m8", "sm_90a-gemm-rows", "sm_90a-gemm-ahead", "sm_90a-gemm-two-splits", "sm_90a-gemm-packed-pairs",
    "sm_90a-gemm-bf16-packed-pairs", "sm_90a-gemm-packed", "sm_90a-gemm-bf16-packed", "sm_90a-gather-gemm", "sm_90a-gather-gemm-sorted",
    "sm_90a-gather-gemm-gate-first", "sm_90a-gather-gemm-gate-first-bursts", "sm_90a-gather-gemm-bf16",
    "sm_90a-gather-gemm-bf16-gate-first", "sm_90a-gather-gemm-bf16-biases", "sm_90a-backward-rows", "sm_90a-backward-tokens",
    "sm_90a-backward-w2", "sm_90a-backward-w2-f32", "sm_90a-backward-rows-fp8", "sm_100a-gather-gemm", "sm_100a-gather-gemm-w4a4",
    "sm_100a-gather-gemm-gate-first", "sm_100a-gather-gemm-w4a4-interleaved", "sm_100a-gather-gemm-two-consumers",
    "sm_100a-gather-gemm-nvfp4", "sm_100a-gather-gemm-bf16", "sm_100a-backward-rows", "sm_100a-ep-dispatch-backward", "sm_90a-moe-fc1",
    "sm_90a-moe-fc2", "sm_90a-ep-dispatch", "sm_90a-ep-combine", "sm_90a-ep-combine-bf16", "sm_90a-ep-dispatch-backward",
    "sm_100a-ep-dispatch", "sm_90a-decode-bf16", "sm_90a-ring-rows",
}  # fmt: skip
"""Names of which others trace every line and every way of a branch: of the sweep, and of `make golden`."""


class Digests(NamedTuple):
    """Of one kernel: its instructions, and the operations that it was compiled from."""

    instructions: str
    operations: str


def read() -> dict[str, Digests]:
    """Committed digests by name."""
    lines = [line.split() for line in FILE.read_text().splitlines()]
    return {name: Digests(*digests) for *digests, name in lines}


def check(name: str, artifact: Artifact) -> None:
    """What the present sources compile to has the committed digest."""
    assert digest(artifact) == read()[name].instructions, f"{name}: other instructions than those committed (make golden)"
    assert_converged(artifact)


def check_operations(name: str) -> None:
    """The same, compiled only if other operations are traced than those that were committed."""
    config = CASES[name]()
    if traced_digest(config) != read()[name].operations:
        check(name, compile_kernel(config))


def write(digests: dict[str, Digests]) -> None:
    """Replaces the committed digests: for a commit that says why instructions change."""
    FILE.write_text("".join(f"{' '.join(both)} {name}\n" for name, both in digests.items()))


def take(config: KernelConfig) -> Digests:
    """The present digests.  No lane of the kernel may overtake another's loads."""
    artifact = compile_kernel(config)
    assert_converged(artifact)
    return Digests(digest(artifact), traced_digest(config))


if __name__ == "__main__":
    write({name: take(config()) for name, config in CASES.items()})
