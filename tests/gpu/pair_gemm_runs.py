"""Small block-scaled GEMMs of CTA pairs: what the simulator and the faults run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_runs import FEW, GROUPED, Run, groups
from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig

W4A8, W4A4, W8A8, NVFP4, PLAIN = "fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4", "bf16xbf16"


@dataclass(frozen=True)
class PairRun(Run):
    """A case by its name; 256 rows of B are the tile's."""

    block_n: int = 0

    @property
    def config(self) -> Sm100GemmConfig:
        problem = GemmProblem(**{"n": 272, "k": 512, **self.problem})
        return Sm100GemmConfig(problem, self.block_m, **{"num_sms": 4, **self.fields})


def pair_run(name: str, counts: tuple[int, ...], block_m: int, recipe: str, problem: dict[str, Any], **fields: Any) -> PairRun:
    return PairRun(name, counts, block_m, problem={**problem, "recipe": recipe}, fields=fields)


STAGES = ((W4A8, 128), (W4A4, 128), (W4A4, 256), (W8A8, 128), (NVFP4, 128), (NVFP4, 256))
TILES = tuple(
    pair_run(
        f"{recipe}-{block_m}-{block_k}",
        (2 * block_m + 5,),
        block_m,
        recipe,
        {},
        block_k=block_k,
        num_stages=3,
        dynamic_schedule=block_m < 128,
    )
    for block_m in (32, 64, 128, 192)
    for recipe, block_k in STAGES
)
OTHERS = (
    pair_run("one-row", (1,), 32, W4A8, {"n": 16, "k": 128}),
    pair_run("bands", (330,), 64, W4A8, {"n": 784, "k": 128}, group_m=2, num_sms=2),
    pair_run("f32", (70,), 64, W4A4, {"output": "f32"}),
    pair_run("accumulate", (70,), 64, W4A8, {"output": "f32", "accumulate": True}),
    *(pair_run(f"contiguous-{recipe}", GROUPED, 128, recipe, groups("contiguous"), dynamic_schedule=True) for recipe in (W4A8, W4A4)),
    *(pair_run(f"contiguous-64-{recipe}", GROUPED, 64, recipe, groups("contiguous")) for recipe in (W4A8, W4A4)),
    *(pair_run(f"masked-{recipe}", GROUPED, 192, recipe, groups("masked")) for recipe in (W4A8, W4A4)),
    *(pair_run(f"masked-few-{recipe}", FEW, 32, recipe, groups("masked"), dynamic_schedule=True) for recipe in (W4A8, W4A4)),
    pair_run(f"masked-few-{W8A8}", FEW, 32, W8A8, groups("masked"), dynamic_schedule=True),
    pair_run(f"contiguous-{NVFP4}", GROUPED, 64, NVFP4, groups("contiguous"), dynamic_schedule=True),
    pair_run(f"masked-few-{NVFP4}", FEW, 32, NVFP4, groups("masked"), block_k=256, dynamic_schedule=True),
    pair_run(f"f32-{NVFP4}", FEW, 64, NVFP4, groups("masked", output="f32")),
    *(
        pair_run(f"{PLAIN}-{block_m}", (2 * block_m + 5,), block_m, PLAIN, {"k": 320}, num_stages=3, dynamic_schedule=block_m < 128)
        for block_m in (32, 64, 128, 192, 256)
    ),
    pair_run(f"one-row-{PLAIN}", (1,), 32, PLAIN, {"n": 16, "k": 64}),
    *(pair_run(f"packed-{block_m}-{PLAIN}", GROUPED, block_m, PLAIN, groups("packed"), dynamic_schedule=True) for block_m in (64, 192)),
    pair_run(f"packed-few-{PLAIN}", FEW, 32, PLAIN, groups("packed", output="f32", accumulate=True), dynamic_schedule=True),
    pair_run(f"contiguous-{PLAIN}", GROUPED, 128, PLAIN, groups("contiguous")),
    pair_run(f"masked-{PLAIN}", GROUPED, 256, PLAIN, groups("masked", k=192), dynamic_schedule=True),
    pair_run(f"f32-{PLAIN}", (70,), 64, PLAIN, {"output": "f32", "k": 192}),
    *(
        pair_run(f"aligned-{recipe}", GROUPED, 192, recipe, groups("aligned"), dynamic_schedule=True)
        for recipe in (W4A8, W4A4, NVFP4, PLAIN)
    ),
    pair_run("masked-nothing", (0,) * 5, 64, W4A8, groups("masked")),
    pair_run("masked-accumulate", FEW, 64, W4A4, groups("masked", output="f32", accumulate=True)),
)
PAIR_RUNS = {run.name: run for run in (*TILES, *OTHERS)}
SUBJECT = pair_run(
    "faults-pair", (96, 0, 128), 64, W4A8, {"n": 272, "k": 512, "kind": "masked", "num_groups": 3}, num_stages=2, dynamic_schedule=True
)
"""Everything happens: rings wrap, three tiles of a pair share two accumulators, passes are whole."""
PLAIN_SUBJECT = pair_run(
    "faults-pair-plain",
    (96, 0, 160),
    64,
    PLAIN,
    {"n": 272, "k": 256, "kind": "packed", "num_groups": 3},
    num_stages=2,
    dynamic_schedule=True,
)
"""The same of rows without scales, packed."""
