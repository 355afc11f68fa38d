"""Small GEMMs of CTA pairs that gather their rows: what the simulator and the faults run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gather_runs import COUNTS, LAYOUTS, MANY, GatherRun
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from pair_gemm_runs import NVFP4, PLAIN, W4A4, W4A8, W8A8


@dataclass(frozen=True)
class PairGatherRun(GatherRun):
    """A case by its name; 256 rows of B are the tile's."""

    block_n: int = 0

    @property
    def config(self) -> Sm100GemmConfig:
        problem = GatherGemmProblem(**{"n": 272, "k": 256, "num_groups": len(self.counts), "recipe": W4A8, **self.problem})
        return Sm100GemmConfig(problem, self.block_m, **{"num_sms": 4, **self.fields})


def pair_gather(name: str, counts: tuple[int, ...], block_m: int, problem: dict[str, Any], **fields: Any) -> PairGatherRun:
    return PairGatherRun(name, counts, block_m, problem=problem, fields=fields)


GATE_UP = {"n": 512, "output": "e4m3"}
NVFP4_HIDDEN = {"n": 512, "output": "e2m1", "recipe": NVFP4}
PAIR_GATHER_RUNS = (
    *(
        pair_gather(f"{source}-{result}", COUNTS, 64, {"source": source, "result": result}, num_stages=3, dynamic_schedule=True)
        for source, result in LAYOUTS
    ),
    pair_gather("rows-32", COUNTS, 32, {}, num_stages=2),
    pair_gather("rows-128-sorted", COUNTS, 128, {"source": "blocked"}),
    pair_gather("rows-192", COUNTS, 192, {"result": "blocked"}, num_stages=2),
    pair_gather("e2m1", COUNTS, 128, {"recipe": W4A4, "k": 512}, block_k=256, num_stages=2),
    pair_gather("e2m1-narrow", COUNTS, 64, {"recipe": W4A4, "source": "packed"}, block_k=128),
    pair_gather("e4m3", COUNTS, 64, {"recipe": W8A8, "result": "blocked"}, num_stages=2),
    pair_gather(
        "forty-experts", tuple(35 * (e in (3, 31, 32, 39)) for e in range(40)), 32, {"n": 528, "k": 128}, group_m=2, dynamic_schedule=True
    ),
    pair_gather("e4m3-weights", COUNTS, 64, {"recipe": "mxfp8xmxfp8"}, num_stages=3),
    pair_gather("many-experts", MANY, 32, {"n": 64, "k": 128, "result": "blocked"}, dynamic_schedule=True),
    pair_gather("gate-first", COUNTS, 64, {**GATE_UP, "gate_up": "gate_first"}, num_stages=2, dynamic_schedule=True),
    pair_gather("up-first", COUNTS, 32, {**GATE_UP, "gate_up": "up_first", "source": "packed", "result": "blocked"}),
    pair_gather("interleaved", COUNTS, 192, {**GATE_UP, "gate_up": "interleaved", "activation": "swigluoai"}, num_stages=2),
    pair_gather("e2m1-gate-first", COUNTS, 64, {**GATE_UP, "output": "e2m1", "gate_up": "gate_first", "recipe": W4A4}, block_k=256),
    pair_gather("two-consumers", COUNTS, 192, {"n": 784, "result": "blocked"}, consumers=2, num_stages=2, dynamic_schedule=True),
    pair_gather("two-consumers-two-tiles", COUNTS, 64, {"recipe": W4A4, "k": 512, "n": 528}, block_k=256, consumers=2),
    pair_gather("two-consumers-gate-first", COUNTS, 128, {**GATE_UP, "gate_up": "gate_first"}, consumers=2, num_stages=2),
    pair_gather("rows-256", (300, 0, 9), 256, {}, num_stages=2),
    pair_gather("two-pairs", (300, 0, 9), 256, {"n": 784, "result": "blocked"}, pairs=2, num_sms=8, num_stages=2, dynamic_schedule=True),
    pair_gather("two-pairs-sorted", COUNTS, 32, {"source": "packed", "n": 528}, pairs=2, num_stages=2),
    pair_gather("two-pairs-gate-first", COUNTS, 64, {**GATE_UP, "n": 1024, "gate_up": "gate_first"}, pairs=2, consumers=2),
    *(
        pair_gather(
            f"stored-{gate_up}", COUNTS, 64, {**GATE_UP, "gate_up": gate_up, "preactivations": True, "result": result}, num_stages=2
        )
        for gate_up, result in (("gate_first", "blocked"), ("up_first", "packed"), ("interleaved", "packed"))
    ),
    pair_gather("nvfp4", COUNTS, 64, {"recipe": NVFP4, "result": "blocked"}, block_k=256, num_stages=2),
    pair_gather("nvfp4-sorted", COUNTS, 128, {"recipe": NVFP4, "source": "blocked", "n": 528, "k": 128}, consumers=2),
    *(
        pair_gather(f"nvfp4-{gate_up}", COUNTS, 64, {"n": 512, "recipe": NVFP4, "gate_up": gate_up, **more}, **fields)
        for gate_up, more, fields in (
            ("gate_first", {"result": "blocked"}, {"block_k": 256, "num_stages": 2}),
            ("up_first", {"source": "packed", "activation": "swigluoai"}, {"consumers": 2}),
            ("interleaved", {"n": 1024, "preactivations": True}, {"pairs": 2, "dynamic_schedule": True}),
        )
    ),
    *(
        pair_gather(f"{PLAIN}-{source}-{result}", COUNTS, block_m, {"recipe": PLAIN, "source": source, "result": result}, **fields)
        for (source, result), block_m, fields in zip(
            LAYOUTS,
            (32, 64, 128, 192, 64, 64),
            ({}, {"consumers": 2}, {"pairs": 2}, {"consumers": 2}, {"pairs": 2}, {"dynamic_schedule": True}),
            strict=True,
        )
    ),
    pair_gather(f"{PLAIN}-largest", (260, 0, 9), 256, {"recipe": PLAIN, "n": 528, "k": 128}, consumers=2, num_stages=2),
    pair_gather(
        f"{PLAIN}-largest-pairs", (300, 0, 9), 256, {"recipe": PLAIN, "n": 1040, "k": 192}, consumers=2, pairs=2, dynamic_schedule=True
    ),
    *(
        pair_gather(f"{PLAIN}-{gate_up}", COUNTS, block_m, {"n": 512, "recipe": PLAIN, "gate_up": gate_up, **more}, **fields)
        for gate_up, block_m, more, fields in (
            ("gate_first", 64, {"result": "blocked"}, {"num_stages": 2}),
            ("up_first", 192, {"source": "packed", "activation": "swigluoai", "preactivations": True}, {"consumers": 2}),
            ("interleaved", 32, {"n": 1024, "preactivations": True}, {"pairs": 2, "dynamic_schedule": True}),
        )
    ),
    *(
        pair_gather(f"nvfp4-scaled-{gate_up}", COUNTS, 64, {**NVFP4_HIDDEN, "gate_up": gate_up, **more}, **fields)
        for gate_up, more, fields in (
            ("gate_first", {"result": "blocked"}, {"block_k": 256, "num_stages": 2}),
            ("up_first", {"source": "packed", "activation": "swigluoai", "result": "blocked"}, {"consumers": 2}),
            ("interleaved", {"n": 1024, "preactivations": True}, {"pairs": 2, "dynamic_schedule": True}),
        )
    ),
    pair_gather("nvfp4-scaled-sorted", COUNTS, 32, {**NVFP4_HIDDEN, "source": "blocked", "gate_up": "interleaved"}),
    pair_gather("nvfp4-scaled-all", COUNTS, 128, {**NVFP4_HIDDEN, "n": 1024, "gate_up": "up_first"}, consumers=2, pairs=2, num_stages=2),
    pair_gather("nvfp4-scaled-precise", COUNTS, 192, {**NVFP4_HIDDEN, "gate_up": "gate_first", "fast_math": False}, num_stages=2),
    pair_gather("one-row", (0, 1), 32, {"n": 16, "k": 128}),
)
PAIR_GATHER_BY_NAME = {run.name: run for run in PAIR_GATHER_RUNS}
EVERYTHING_OF_PAIRS = pair_gather(
    "faults-pair-gathered", (20, 0, 90), 32, {"n": 528, "k": 384, "result": "blocked"}, num_stages=2, dynamic_schedule=True, consumers=2
)
"""Rings of stages and of lists wrap, tiles end within rows of other experts' blocks, passes are whole; two consumers share rows."""
EVERYTHING_OF_TWO_PAIRS = pair_gather("faults-pairs-gathered", (20, 0, 90), 32, {"n": 528, "k": 384}, num_stages=2, pairs=2)
"""The same of clusters of two pairs, which give each other's stages back."""
PLAIN_OF_PAIRS = pair_gather(
    "faults-pairs-plain",
    (20, 0, 90),
    32,
    {"recipe": PLAIN, "n": 528, "k": 192, "result": "blocked"},
    num_stages=2,
    dynamic_schedule=True,
    consumers=2,
)
"""As `EVERYTHING_OF_PAIRS`, of rows without scales."""
