"""Small GEMMs that have a bit of everything: what the simulator, silicon and the faults run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.kernel_cases.gemm import GemmCase, gemm_case


@dataclass(frozen=True)
class Run:
    """A case by its name: a configuration, and rows of each group."""

    name: str
    counts: tuple[int, ...]
    block_m: int
    block_n: int
    problem: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> GemmConfig:
        problem = GemmProblem(**{"n": 416, "k": 384, **self.problem})
        return GemmConfig(problem, self.block_m, self.block_n, **{"num_sms": 4, **self.fields})

    def case(self, *, exact: bool) -> GemmCase:
        return gemm_case(self.config.problem, self.counts, seed=len(self.name), exact=exact, arch=self.config.arch)


GROUPED = (130, 0, 1, 64, 200)
PAIRS = {"cluster": 2, "dynamic_schedule": True}
EVERYTHING = {**PAIRS, "half_tiles": True}
SWAPPED = {"swap_ab": True}
SPLIT = {"cluster": 2, "split_k": True, "epilogue_buffers": 1}
FEW = (30, 0, 1, 64, 20)
FP4 = {"recipe": "fp8xmxfp4"}
PLAIN = {"recipe": "bf16xbf16"}


def groups(kind: str, **fields: Any) -> dict[str, Any]:
    return {"n": 272, "k": 256, "kind": kind, "num_groups": 5, **fields}


RUNS = (
    Run("one-row", (1,), 64, 16),
    Run("rows-64", (70,), 64, 96, {"n": 400}),
    Run("rows-64-every-split", (70,), 64, 112, {"n": 912, "k": 256}),
    Run("rows-64-one-warpgroup", (70,), 64, 56, {"n": 400}, {"warpgroups": 1}),
    Run("rows-128", (200,), 128, 128),
    Run("rows-128-wide", (200,), 128, 256, {"n": 512}, {"num_sms": 1}),
    Run("rows-128-two-splits", (200,), 128, 192),
    Run("rows-128-four-splits", (129,), 128, 160, {"n": 656}),
    Run("rows-192", (200,), 192, 128, {}, {"num_sms": 2}),
    Run("half_tiles", (130,), 128, 256, {}, {"half_tiles": True, "dynamic_schedule": True}),
    Run("pairs", (330,), 128, 128, {}, {"cluster": 2}),
    Run("pairs-dealt", (330,), 128, 192, {}, PAIRS),
    Run("pairs-rows-192", (400,), 192, 96, {}, PAIRS),
    Run("split-k", (200,), 128, 136, {"k": 640}, SPLIT),
    Run("split-k-ahead", (130,), 64, 144, {"k": 768}, {**SPLIT, "k_in_flight": 2}),
    Run("split-k-one-warpgroup", (70,), 64, 32, {"k": 896}, {**SPLIT, "warpgroups": 1, "k_in_flight": 2, "epilogue_buffers": 2}),
    Run("deep", (40,), 64, 64, {"n": 64, "k": 4352}, {"num_sms": 1}),
    Run("swapped-8", (17,), 8, 256, {}, SWAPPED),
    Run("swapped-24", (21,), 24, 64, {}, SWAPPED),
    Run("swapped-64", (60,), 64, 128, {}, SWAPPED),
    Run("bursts", (130,), 64, 64, {"k": 1280}, {"num_stages": 3, "burst": 2}),
    Run(
        "packed-bursts",
        FEW,
        16,
        128,
        groups("packed", k=1024),
        {**SWAPPED, "dynamic_schedule": True, "k_in_flight": 2, "num_stages": 6, "burst": 4},
    ),
    Run("f32", (70,), 64, 96, {"output": "f32"}),
    Run("accumulate", (200,), 128, 192, {"output": "f32", "accumulate": True}, {"half_tiles": True}),
    Run("accumulate-swapped", (20,), 16, 128, {"output": "f32", "accumulate": True}, SWAPPED),
    *(Run(f"{kind}", GROUPED, 128, 128, groups(kind)) for kind in ("contiguous", "packed", "masked")),
    *(Run(f"{kind}-pairs", GROUPED, 128, 192, groups(kind), EVERYTHING) for kind in ("contiguous", "packed", "masked")),
    Run("aligned-pairs", GROUPED, 128, 192, groups("aligned"), EVERYTHING),
    Run("aligned-swapped", FEW, 32, 128, groups("aligned"), SWAPPED),
    Run("packed-split-k", GROUPED, 128, 64, groups("packed", k=384, output="f32"), {**SPLIT, "dynamic_schedule": True}),
    *(Run(f"{kind}-swapped", FEW, 32, 128, groups(kind), SWAPPED) for kind in ("contiguous", "packed", "masked")),
    Run("packed-weights-first", FEW, 32, 128, groups("packed"), {**SWAPPED, "dynamic_schedule": True, "prefetch_weights": True}),
    Run("packed-pairs-weights-first", GROUPED, 128, 192, groups("packed"), {**EVERYTHING, "prefetch_weights": True}),
    Run("contiguous-nothing", (0, 0, 0, 0, 0), 64, 64, groups("contiguous")),
    Run("fp4-8", (17,), 8, 256, FP4, SWAPPED),
    Run("fp4-64", (70,), 64, 256, FP4, {**SWAPPED, "num_sms": 2}),
    Run("fp4-half", (60,), 40, 128, {"n": 400, **FP4}, {**SWAPPED, "dynamic_schedule": True}),
    Run("fp4-half-one-warpgroup", (60,), 64, 128, {"n": 400, **FP4}, {**SWAPPED, "warpgroups": 1, "epilogue_buffers": 1}),
    Run("fp4-quarter", (21,), 24, 64, {"n": 336, **FP4}, SWAPPED),
    Run("fp4-deep", (20,), 16, 64, {"n": 64, "k": 4352, **FP4}, {**SWAPPED, "num_sms": 1}),
    Run("fp4-split-k", (30,), 16, 128, {"k": 640, **FP4}, {**SWAPPED, **SPLIT}),
    Run("fp4-split-k-64", (70,), 64, 256, {"k": 896, **FP4}, {**SWAPPED, **SPLIT}),
    Run(
        "fp4-split-k-quarter",
        (9,),
        8,
        64,
        {"n": 208, "output": "f32", "accumulate": True, **FP4},
        {**SWAPPED, **SPLIT, "epilogue_buffers": 2},
    ),
    *(
        Run(f"fp4-{kind}", FEW, 32, 128, groups(kind, **FP4), {**SWAPPED, "dynamic_schedule": True})
        for kind in ("contiguous", "packed", "masked")
    ),
    Run("fp4-rows-128", (200,), 128, 256, {"n": 400, **FP4}, {"num_sms": 2, "epilogue_buffers": 1}),
    Run("fp4-rows-128-halves", (130,), 128, 256, {"n": 400, **FP4}, {"num_sms": 2, "half_tiles": True, "dynamic_schedule": True}),
    Run("fp4-rows-256", (330,), 256, 128, FP4, {"num_sms": 2}),
    Run("fp4-rows-accumulate", (200,), 256, 128, {"output": "f32", "accumulate": True, **FP4}, {"num_sms": 2}),
    Run("fp4-rows-contiguous", GROUPED, 128, 256, groups("contiguous", **FP4), {"half_tiles": True}),
    Run("fp4-rows-packed", GROUPED, 128, 256, groups("packed", **FP4), {"half_tiles": True, "dynamic_schedule": True}),
    Run("fp4-rows-masked", GROUPED, 256, 128, groups("masked", **FP4), {"dynamic_schedule": True}),
    Run("bf16-64", (70,), 64, 96, {"n": 400, "k": 320, **PLAIN}),
    Run("bf16-wide", (200,), 128, 256, {"n": 512, **PLAIN}, {"num_sms": 1}),
    Run("bf16-one-block", (9,), 64, 64, {"n": 64, "k": 64, **PLAIN}, {"warpgroups": 1}),
    Run("bf16-pairs", (400,), 192, 96, PLAIN, PAIRS),
    Run("bf16-split-k", (200,), 128, 136, {"k": 320, **PLAIN}, SPLIT),
    Run("bf16-accumulate", (200,), 128, 192, {"output": "f32", "accumulate": True, **PLAIN}, {"half_tiles": True}),
    Run("bf16-8", (17,), 8, 256, PLAIN, SWAPPED),
    Run("bf16-24", (21,), 24, 64, PLAIN, SWAPPED),
    *(Run(f"bf16-{kind}", GROUPED, 128, 192, groups(kind, **PLAIN), EVERYTHING) for kind in ("contiguous", "packed", "masked")),
    Run("bf16-packed-swapped", FEW, 32, 128, groups("packed", **PLAIN), {**SWAPPED, "dynamic_schedule": True}),
    Run(
        "bf16-packed-weights-first",
        GROUPED,
        128,
        192,
        groups("packed", **PLAIN),
        {"half_tiles": True, "dynamic_schedule": True, "prefetch_weights": True},
    ),
    Run("masked-f32", FEW, 64, 64, groups("masked", output="f32", accumulate=True)),
)
BY_NAME = {run.name: run for run in RUNS}
