"""Small GEMMs over the rows of experts: what the simulator, silicon and the faults run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import RESULTS, SOURCES, GatherGemmProblem
from megamoe_dsl.kernel_cases.gather import GatherCase, gather_case


@dataclass(frozen=True)
class GatherRun:
    """A case by its name: a configuration, and rows of each expert."""

    name: str
    counts: tuple[int, ...]
    block_m: int
    block_n: int
    problem: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> GemmConfig:
        problem = GatherGemmProblem(**{"n": 208, "k": 256, "num_groups": len(self.counts), **self.problem})
        return GemmConfig(problem, self.block_m, self.block_n, **{"num_sms": 2, **self.fields})

    def case(self, *, exact: bool) -> GatherCase:
        return gather_case(self.config.problem, self.counts, seed=len(self.name), exact=exact, arch=self.config.arch)


COUNTS = (70, 0, 1, 130)
MANY = tuple(3 * (expert % 37 == 5) + (expert % 100 == 99) for expert in range(512))
GATE_UP = {"n": 512, "output": "e4m3"}
GPT_OSS = {**GATE_UP, "gate_up": "interleaved", "activation": "swigluoai"}
BF16 = {"recipe": "bf16xbf16"}
BF16_GATE_UP = {"n": 512, **BF16}
BURSTS = {"warpgroups": 1, "dynamic_schedule": True, "burst": 2}
PAIRS = {"dynamic_schedule": True, "cluster": 2, "num_sms": 4}
LAYOUTS = tuple((source, result) for source in SOURCES for result in RESULTS)

GATHER_RUNS = (
    *(
        GatherRun(f"gather-{source}-{result}", COUNTS, 128, 128, {"source": source, "result": result}, {"dynamic_schedule": True})
        for source, result in LAYOUTS
    ),
    *(
        GatherRun(
            f"gather-bf16-{source}-{result}", COUNTS, 128, 128, {"source": source, "result": result, **BF16}, {"dynamic_schedule": True}
        )
        for source, result in LAYOUTS
    ),
    GatherRun("gather-bf16-swapped", (25, 0, 2), 24, 64, {"result": "blocked", "k": 320, **BF16}, {"swap_ab": True}),
    GatherRun("bf16-gate-first", (30, 0, 70), 64, 256, {**BF16_GATE_UP, "gate_up": "gate_first", "result": "blocked"}, {"warpgroups": 1}),
    GatherRun("bf16-up-first", (130, 5), 128, 256, {**BF16_GATE_UP, "gate_up": "up_first"}, {"dynamic_schedule": True}),
    GatherRun("bf16-interleaved", (0, 67), 64, 256, {**BF16_GATE_UP, "gate_up": "interleaved", "source": "packed"}, {"warpgroups": 1}),
    GatherRun("bf16-gate-first-pairs", (300, 0, 5, 130), 128, 256, {**BF16_GATE_UP, "gate_up": "gate_first"}, PAIRS),
    GatherRun("up-first-pairs", (260, 0, 70), 128, 256, {**GATE_UP, "k": 768, "gate_up": "up_first"}, PAIRS),
    GatherRun("gather-pairs", (70, 0, 5, 130), 64, 128, {"k": 512}, {"dynamic_schedule": True, "cluster": 2}),
    GatherRun("gather-wide", (140, 3), 128, 256, {"n": 272}, {"half_tiles": True}),
    GatherRun("gather-rows-64-ahead", (65, 0, 3), 64, 64, {"k": 512}, {"warpgroups": 1, "k_in_flight": 2, "num_stages": 3}),
    GatherRun("gather-scale-by-scale", (65, 0, 3), 64, 64, {"k": 384}, {"warpgroups": 1}),
    GatherRun("gather-swapped-8", (1, 9, 0), 8, 128, {}, {"swap_ab": True}),
    GatherRun("gather-swapped-24", (25, 0, 2), 24, 64, {"result": "blocked"}, {"swap_ab": True}),
    GatherRun("gather-many-experts", MANY, 8, 64, {"n": 64, "result": "blocked"}, {"swap_ab": True, "dynamic_schedule": True}),
    GatherRun("gate-first", (30, 0, 70), 64, 256, {**GATE_UP, "gate_up": "gate_first", "result": "blocked"}, {"warpgroups": 1}),
    GatherRun("gate-first-bursts", (66, 0, 3), 64, 256, {**GATE_UP, "k": 768, "gate_up": "gate_first"}, BURSTS),
    GatherRun("up-first-bursts", (3,), 64, 256, {**GATE_UP, "k": 512, "gate_up": "up_first"}, {**BURSTS, "num_stages": 3}),
    GatherRun("bf16-gate-first-bursts", (9, 66), 64, 256, {**BF16_GATE_UP, "gate_up": "gate_first"}, BURSTS),
    GatherRun("gather-swapped-bursts", (9, 25), 24, 64, {"k": 1024}, {"swap_ab": True, "num_stages": 5, "burst": 4}),
    GatherRun(
        "gate-first-long", (66,), 128, 256, {**GATE_UP, "k": 1536, "gate_up": "gate_first"}, {"dynamic_schedule": True, "num_sms": 1}
    ),
    GatherRun("up-first", (130, 5), 128, 256, {**GATE_UP, "gate_up": "up_first"}, {"dynamic_schedule": True}),
    GatherRun(
        "interleaved",
        (0, 67),
        64,
        256,
        {**GPT_OSS, "source": "packed"},
        {"warpgroups": 1},
    ),
    *(
        GatherRun(
            f"stored-{gate_up}",
            counts,
            rows,
            256,
            {**GATE_UP, "gate_up": gate_up, "preactivations": True},
            {"dynamic_schedule": True, **more},
        )
        for gate_up, counts, rows, more in (
            ("gate_first", (130, 0, 5), 128, {}),
            ("up_first", (17, 3), 64, {"warpgroups": 1}),
            ("interleaved", (2, 0, 66), 64, {"warpgroups": 1}),
        )
    ),
    GatherRun("gather-one-row", (0, 1), 64, 64),
)
GATHER_BY_NAME = {run.name: run for run in GATHER_RUNS}
EVERYTHING_GATHERED = GatherRun("faults-gathered", (20, 0, 70), 64, 64, {"n": 144, "k": 512, "result": "blocked"}, {"num_stages": 2})
EVERYTHING_GATHERED_IN_PAIRS = GatherRun("faults-gathered-pairs", (20, 130, 20), 64, 64, {"n": 144}, {**PAIRS, "num_stages": 2})
