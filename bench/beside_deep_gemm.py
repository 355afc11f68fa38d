"""DeepGEMM's own SM100 MegaMoE beside ours on simulated ranks: its headers, PTX by nvcc, the same data, and the reference.

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 -d build sgl-deep-gemm==0.2.5
    python -m zipfile -e build/sgl_deep_gemm-0.2.5-*.whl build/deep_gemm_site
    python bench/beside_deep_gemm.py build/deep_gemm_site --recipe mxf4xmxf4
    python bench/beside_deep_gemm.py build/deep_gemm_site --combine e4m3

nvcc of CUDA 13 must be in PATH; no GPU is needed.  y must equal ours bit for bit, with exact data the reference's, too.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cuda_headers import CudaHeaders, HeadersError
from deep_gemm_mega_moe import CAPACITY, HEADER, TILES, DeepGemmMegaMoe
from megamoe_dsl.arch import SM100
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.cases import random_case
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.layouts.arith import align
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.simulated import SimulatedMoE
from megamoe_dsl.sim import SimError
from megamoe_dsl.target import Target

LAUNCHES, NUM_SMS = 2, 4
RECIPES, COMBINES = ("fp8xfp4", "mxf4xmxf4"), ("bf16", "e4m3")
ROUNDED = 1e-4  # relative distance of random data: the reference rounds a sum once, the simulator's tensor core at every step
SHAPE = Problem(hidden=512, intermediate=512, num_experts=8, topk=2, activation_clamp=10.0)
DATA: dict[str, dict[str, Any]] = {
    "random": {"exact": False, "target_expert": 1, "mask": 0.1},
    "skewed": {"exact": False, "skew": True},
    "exact": {"exact": True, "target_expert": 1},
}
"""Of `random_case`; one expert gets a full and a partial tile where there is a target."""


def unequal(y: list[torch.Tensor], other: list[torch.Tensor]) -> int:
    """Elements that differ, over all ranks; 0 and -0 do not, NaN always does."""
    return sum(int((~(a == b)).sum()) for a, b in zip(y, other, strict=True))


def distance(y: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Relative, over all ranks."""
    got, want = torch.cat(y).double(), torch.cat(other).double()
    return float((got - want).norm() / want.norm())


@dataclass(frozen=True)
class Trial:
    """Both kernels on the same data: a full tile and some tokens of the first rank, a few of the last."""

    headers: CudaHeaders
    recipe: str
    combine: str
    ranks: int
    block_m: int
    data: str

    def run(self) -> tuple[bool, str]:
        """Whether theirs is as it must be, and what is to be told.  Raises SimError and HeadersError."""
        tokens = (self.block_m + 5, 9)[: self.ranks]
        most = align(max(tokens), CAPACITY)
        problem = replace(SHAPE, num_ranks=self.ranks, max_tokens_per_rank=most, recipe=self.recipe, combine=self.combine)
        case = random_case(problem, tokens, self.block_m, **DATA[self.data])
        theirs, report = DeepGemmMegaMoe(self.headers, problem, self.block_m, NUM_SMS).run(case, LAUNCHES)
        config = find_kernel("mega_moe").choose(problem, Target(SM100, NUM_SMS), most, block_m=self.block_m)
        inputs = [Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]
        ours, own = SimulatedMoE(compile_kernel(config), case.weights)(inputs)
        reference, elements = case.reference().y, LAUNCHES * sum(one.numel() for one in ours)
        differ = sum(unequal(y, ours) for y in theirs)
        far = max(distance(y, reference) for y in theirs)
        passed = differ == 0 and far <= (0.0 if self.data == "exact" else ROUNDED) and not own.findings
        told = f"{self.recipe}, results in {self.combine}, {self.ranks} ranks, tiles of {self.block_m}, {self.data}: of {elements} "
        told += f"{differ} differ from ours, {far:.1e} from the reference; {len(report.findings)} findings (ours {len(own.findings)})"
        return passed, f"{told}, {report.seconds:.0f} s{'' if passed else '  FAILED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder with the unpacked wheel")
    parser.add_argument("--recipe", choices=RECIPES, default=RECIPES[0])
    parser.add_argument("--combine", choices=COMBINES, default=COMBINES[0], help="format of results between ranks")
    parser.add_argument("--tiles", default="", help="tokens of a tile, separated by commas; default: all that the kernel has")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--cache", type=Path, default=Path("build/nvcc"), help="folder of nvcc's products")
    given = parser.parse_args()
    allowed = [tile for tile in TILES if tile > 16 or given.recipe == RECIPES[0]]
    tiles, ranks = ([int(one) for one in text.split(",") if one] for text in (given.tiles, given.ranks))
    if unknown := set(tiles) - set(allowed):
        parser.error(f"--tiles {', '.join(map(str, sorted(unknown)))}: must be some of {', '.join(map(str, allowed))}")
    points = [(count, tile, "random") for tile in tiles or allowed for count in ranks]
    points += [(max(ranks), (tiles or allowed)[0], data) for data in DATA if data != "random"]
    failed = False
    try:
        headers = CudaHeaders(given.site / "deep_gemm" / "include", HEADER, given.cache)
        print(f"headers {headers.digest}", flush=True)
        for point in points:
            passed, told = Trial(headers, given.recipe, given.combine, *point).run()
            failed |= not passed
            print(told, flush=True)
    except (HeadersError, SimError) as error:
        sys.exit(f"error: {error}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
