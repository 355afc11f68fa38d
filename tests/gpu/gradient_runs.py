"""Small GEMMs of a backward pass: what the simulator, silicon and the faults run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gather_runs import BF16, GatherRun
from gemm_runs import Run
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem, VarlenKProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.kernel_cases.gradients import GradientCase, VarlenKCase, gradient_case, varlen_k_case


@dataclass(frozen=True)
class VarlenKRun:
    """A case by its name: rows of each group, and fields of a problem and a configuration."""

    name: str
    counts: tuple[int, ...]
    n: int
    k: int
    problem: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> GemmConfig | Sm100GemmConfig:
        problem = VarlenKProblem(self.n, self.k, num_groups=len(self.counts), **self.problem)
        return self.tile(problem, **{"block_m": 128, "num_sms": 2, "dynamic_schedule": True, **self.fields})

    def tile(self, problem: VarlenKProblem, **fields: Any) -> GemmConfig | Sm100GemmConfig:
        return GemmConfig(problem, **{"block_n": 256, **fields})

    def case(self, *, exact: bool) -> VarlenKCase:
        return varlen_k_case(self.config.problem, self.counts, seed=len(self.name), exact=exact, arch=self.config.arch)


class PairVarlenKRun(VarlenKRun):
    """On SM100."""

    def tile(self, problem: VarlenKProblem, **fields: Any) -> Sm100GemmConfig:
        return Sm100GemmConfig(problem, **fields)


class GradientRun(GatherRun):
    """Sums are gradients of gate and up."""

    def case(self, *, exact: bool) -> GradientCase:
        return gradient_case(self.config.problem, self.counts, seed=len(self.name), exact=exact)


class PairGradientRun(GradientRun):
    """On SM100, whose tiles have a width of their own."""

    @property
    def config(self) -> Sm100GemmConfig:  # type: ignore[override]
        problem = GatherGemmProblem(num_groups=len(self.counts), **self.problem)
        return Sm100GemmConfig(problem, self.block_m, **{"num_sms": 2, "dynamic_schedule": True, **self.fields})


FP32 = {"output": "f32", "accumulate": True}
LEFT = {"gathered": "left"}
FP8 = {"recipe": "fp8xfp8", "gathered": ""}
MXFP8 = {"recipe": "mxfp8xmxfp8"}
SUMMED_MXFP8 = {**MXFP8, "gathered": ""}
MOST_GROUPS = tuple(3 * (group % 341 == 1) for group in range(1024))
VARLEN_K_RUNS = (
    VarlenKRun("right", (70, 0, 1, 130), 288, 160),
    VarlenKRun("left", (70, 0, 1, 130), 160, 288, LEFT),
    VarlenKRun("right-f32", (65, 0, 3), 288, 160, FP32),
    VarlenKRun("left-f32", (65, 0, 3), 160, 288, {**LEFT, **FP32}),
    VarlenKRun("right-f32-in-turn", (0, 64, 9), 96, 128, FP32, {"dynamic_schedule": False, "epilogue_buffers": 1}),
    VarlenKRun("left-192", (0, 0, 127), 96, 192, LEFT, {"block_n": 192}),
    VarlenKRun("right-aligned", (70, 0, 128, 130), 288, 160, {"kind": "aligned"}),
    VarlenKRun("left-f32-aligned", (65, 0, 3), 160, 288, {**LEFT, **FP32, "kind": "aligned"}),
    VarlenKRun("right-192-one-box", (127, 192), 192, 128, {}, {"block_n": 192, "epilogue_buffers": 1}),
    VarlenKRun("right-pairs", (70, 0, 1, 130), 288, 256, {}, {"num_sms": 4, "cluster": 2}),
    VarlenKRun("left-f32-pairs", (65, 0, 3), 256, 320, {**LEFT, **FP32}, {"num_sms": 4, "cluster": 2}),
    VarlenKRun("two-stages", (200,), 128, 128, LEFT, {"block_n": 128, "num_stages": 2}),
    VarlenKRun("many-groups", tuple(5 * (group % 9 == 2) for group in range(70)), 128, 128, {}, {"block_n": 128}),
    VarlenKRun("most-groups", MOST_GROUPS, 64, 64, FP32, {"block_n": 64}),
    VarlenKRun("fp8", (256, 0, 128), 160, 288, FP8, {"block_n": 128}),
    VarlenKRun("fp8-f32", (128, 0, 384), 288, 160, {**FP8, **FP32}, {"block_n": 128, "dynamic_schedule": False}),
    VarlenKRun("fp8-f32-pairs", (0, 128, 384), 256, 160, {**FP8, **FP32}, {"block_n": 128, "num_sms": 4, "cluster": 2}),
    VarlenKRun("row-alone", (1,), 64, 64, {}, {"block_n": 64, "num_sms": 1}),
)
GRADIENT = {"n": 160, "k": 96, "transposed_b": True, **BF16}
GRADIENT_FP8 = {"n": 256, "k": 384, "recipe": "fp8xfp8"}
IN_PAIRS = {"dynamic_schedule": True, "num_sms": 4, "cluster": 2}
GRADIENT_RUNS = tuple(
    GradientRun(
        f"{activation}-{order}-{block_n}",
        (70, 0, 130),
        128,
        block_n,
        {**GRADIENT, "gradient": order, "activation": activation},
        {"dynamic_schedule": True},
    )
    for activation in ("silu", "swigluoai")
    for order in ("gate_first", "up_first", "interleaved")
    for block_n in (128, 256)
) + tuple(
    GradientRun(f"fp8-{order}", (70, 0, 130), 128, 128, {**GRADIENT_FP8, "gradient": order}, {"dynamic_schedule": True, "k_in_flight": 2})
    for order in ("gate_first", "interleaved")
)
GRADIENT_RUNS += (
    GradientRun("fp8-pairs", (70, 0, 130), 128, 256, {**GRADIENT_FP8, "gradient": "up_first"}, IN_PAIRS),
    GradientRun("silu-pairs", (70, 0, 300), 128, 128, {**GRADIENT, "gradient": "gate_first"}, IN_PAIRS),
)
PAIR_VARLEN_K_RUNS = (
    PairVarlenKRun("right", (70, 0, 1, 130), 288, 160),
    PairVarlenKRun("left", (70, 0, 1, 130), 160, 288, LEFT, {"block_m": 256}),
    PairVarlenKRun("right-f32", (65, 0, 3), 288, 160, FP32),
    PairVarlenKRun("left-f32-in-turn", (0, 64, 9), 96, 320, {**LEFT, **FP32}, {"dynamic_schedule": False, "num_sms": 4}),
    PairVarlenKRun("many-groups", tuple(5 * (group % 9 == 2) for group in range(70)), 128, 128),
    PairVarlenKRun("most-groups", MOST_GROUPS, 64, 64, FP32),
    PairVarlenKRun("right-aligned", (70, 0, 128, 130), 288, 160, {"kind": "aligned"}),
    PairVarlenKRun("left-f32-aligned", (65, 0, 3), 160, 288, {**LEFT, **FP32, "kind": "aligned"}, {"block_m": 256}),
    PairVarlenKRun("row-alone", (1,), 64, 64),
    PairVarlenKRun("mxfp8", (256, 0, 128), 160, 288, SUMMED_MXFP8, {"block_m": 64}),
    PairVarlenKRun("mxfp8-f32", (128, 0, 384), 288, 160, {**SUMMED_MXFP8, **FP32}, {"block_m": 192, "dynamic_schedule": False}),
)
PAIR_GRADIENT = {**GRADIENT, "k": 128}
PAIR_GRADIENT_RUNS = tuple(
    PairGradientRun(
        f"{activation}-{order}-{block_m}",
        (70, 0, 130),
        block_m,
        256,
        {**PAIR_GRADIENT, "gradient": order, "activation": activation},
        {"consumers": consumers},
    )
    for activation, block_m, consumers in (("silu", 64, 1), ("swigluoai", 128, 2))
    for order in ("gate_first", "up_first", "interleaved")
)
PAIR_GRADIENT_RUNS += (
    PairGradientRun("mxfp8-up_first-128", (70, 0, 130), 128, 256, {"n": 160, "k": 384, **MXFP8, "gradient": "up_first"}),
)
PAIR_VARLEN_K_BY_NAME = {run.name: run for run in PAIR_VARLEN_K_RUNS}
PAIR_GRADIENT_BY_NAME = {run.name: run for run in PAIR_GRADIENT_RUNS}
VARLEN_K_BY_NAME = {run.name: run for run in VARLEN_K_RUNS}
GRADIENT_BY_NAME = {run.name: run for run in GRADIENT_RUNS}
EVERYTHING_SUMMED = VarlenKRun("faults-varlen-k", (70, 0, 130), 96, 160, FP32, {"block_n": 64, "num_stages": 2})
"""All that a sum over rows of groups does."""
EVERYTHING_SUMMED_FP8 = VarlenKRun("faults-fp8", (384, 0, 128), 128, 160, {**FP8, **FP32}, {"block_n": 128, "num_stages": 2})
EVERYTHING_OF_GRADIENTS = GradientRun(
    "faults-gradients",
    (70, 0, 130),
    128,
    128,
    {**GRADIENT, "k": 192, "gradient": "gate_first"},
    {"dynamic_schedule": True, "num_stages": 2},
)
EVERYTHING_OF_GRADIENTS_FP8 = GradientRun(
    "faults-gradients-fp8",
    (70, 0, 130),
    128,
    128,
    {**GRADIENT_FP8, "k": 640, "gradient": "gate_first"},
    {"dynamic_schedule": True, "num_stages": 2, "k_in_flight": 2},
)
ROWS_IN_PAIRS = GradientRun(
    "faults-rows-pairs", (130, 0, 1, 200), 128, 128, {**GRADIENT, "n": 288, "gradient": "gate_first"}, {**IN_PAIRS, "num_stages": 2}
)
TOKENS_IN_PAIRS = Run(
    "faults-tokens-pairs",
    (130, 0, 1, 200),
    128,
    128,
    {"n": 416, "k": 192, "kind": "packed", "num_groups": 4, "transposed_b": True, **BF16},
    {**IN_PAIRS, "num_stages": 2},
)
"""Of a backward pass, by CTAs of a cluster that have the same columns, the same rows, neither, or no other tile."""
EVERYTHING_SUMMED_BY_PAIRS = PairVarlenKRun("faults-pairs", (70, 0, 130), 160, 288, {}, {"num_stages": 2})
EVERYTHING_OF_PAIR_GRADIENTS = PairGradientRun(
    "faults-pair-gradients", (90, 0, 120), 64, 256, {**PAIR_GRADIENT, "k": 192, "gradient": "gate_first"}, {"num_stages": 2}
)
EVERYTHING_SUMMED_IN_MXFP8 = PairVarlenKRun("faults-mxfp8", (384, 0, 128), 160, 288, SUMMED_MXFP8, {"block_m": 64, "num_stages": 2})
EVERYTHING_OF_MXFP8_GRADIENTS = PairGradientRun(
    "faults-mxfp8-gradients", (90, 0, 120), 64, 256, {"n": 160, "k": 640, **MXFP8, "gradient": "gate_first"}, {"num_stages": 2}
)
