"""DeepGEMM's own kernels beside ours on simulated ranks: its headers, PTX by nvcc, the same data, and the reference.

    python studies/beside_deep_gemm.py SITE [--cutlass FOLDER] [--kernels sm100,sm90,inputs,gemm] [--tiles 16,192] [--ranks 1,2]

SITE is a folder with the unpacked wheel of sgl-deep-gemm (0.2.5 or 0.1.5), or a checkout of DeepGEMM of June 2026, which has the SM100
kernel alone and needs CUTLASS's headers.  nvcc of CUDA 13 must be in PATH; no GPU is needed.  All of it takes ten minutes on one core.

sm100   MegaMoE, fp8xfp4: y must equal ours bit for bit, and the reference; of random data a few elements may be rounded otherwise
sm90    MegaMoE, fp8xfp8, of 0.2.5: its numerics are not ours; with tiles of 64 tokens y must equal the reference with them bit for bit, and
        be near it with tiles of 128, which multiply the tensor core's accumulators with quotients of scales instead of promoting sums
inputs  BF16 tokens to E4M3 on both architectures: every byte must equal ours
gemm    the SM90 FP8 GEMM, dense, contiguous and masked groups: D must equal ours and the reference with the tensor core's sums bit for bit
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cuda_headers import CudaHeaders, HeadersError
from deep_gemm_findings import grouped
from deep_gemm_gemm import HEADER as GEMM_HEADER
from deep_gemm_gemm import TILES as GEMM_TILES
from deep_gemm_gemm import GemmTile, run_gemm
from deep_gemm_headers import find_headers
from deep_gemm_inputs import has_inputs, run_inputs
from deep_gemm_run import Peer, run_peer
from deep_gemm_sm90 import SM90_KERNEL, DeepGemmSm90
from deep_gemm_sm90 import TILES as SM90_TILES
from deep_gemm_sm90_reference import their_reference
from deep_gemm_sm100 import TILES as SM100_TILES
from deep_gemm_sm100 import DeepGemmSm100
from megamoe_dsl.bench.gemm.case import gemm_case

from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.bench.result_file import save
from megamoe_dsl.blocks.gemm.config import ROWS, GemmConfig
from megamoe_dsl.blocks.gemm.problem import CONTIGUOUS, DENSE, MASKED, ROW_BLOCK, GemmProblem
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.cli.simulate_inputs import FIELDS, draw_inputs
from megamoe_dsl.cli.simulate_inputs import launch as launch_of_ours
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.kernels.moe.pre_dispatch.config import PreDispatchConfig
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.layouts.arith import align, ceil_div
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.simulated import SimulatedMoE
from megamoe_dsl.runtime.simulated_gemm import simulate_gemm
from megamoe_dsl.sim import GlobalMemory, SimError, Simulator

LAUNCHES = 2
CAPACITY = 128  # tokens that the buffer is a multiple of, as its host code has it on SM90
NUM_SMS = 4
ROUNDED = 1e-4  # relative distance of random data: the reference rounds a sum once, the simulator's tensor core at every step
RESCALED = 0.05  # that rescaled accumulators of 14 bits may bring
GEMM_COLUMNS = 480
SHAPE = Problem(hidden=512, intermediate=512, num_experts=8, topk=2, activation_clamp=10.0)
DATA: dict[str, dict[str, Any]] = {
    "random": {"exact": False, "target_expert": 1, "mask": 0.1},
    "skewed": {"exact": False, "skew": True},
    "exact": {"exact": True, "target_expert": 1},
}
"""Of `cases.random_case`; one expert gets a full and a partial tile where there is a target."""


@dataclass(frozen=True)
class Trial:
    """One comparison: `kernel` of KERNELS on so many ranks, with tiles of `block_m` tokens."""

    kernel: str
    ranks: int
    block_m: int
    data: str

    @property
    def case(self) -> Case:
        """Its data: the first rank has a full tile and some for the target, the last a few."""
        tokens = (self.block_m + 5, 9)[: self.ranks]
        recipe = "fp8xfp4" if self.kernel == "sm100" else "fp8xfp8"
        problem = replace(SHAPE, num_ranks=self.ranks, max_tokens_per_rank=align(max(tokens), CAPACITY), recipe=recipe)
        return random_case(problem, tokens, self.block_m, **DATA[self.data])

    def theirs(self, headers: CudaHeaders, problem: Problem) -> Peer:
        """DeepGEMM's kernel."""
        kind = DeepGemmSm100 if self.kernel == "sm100" else DeepGemmSm90
        return kind(headers, problem, self.block_m, NUM_SMS)

    def ours(self, problem: Problem) -> MegaMoeConfig:
        """Our kernel, with the same tiles where it has them."""
        kind = Sm100Config if self.kernel == "sm100" else Sm90Config
        tile = {"block_m": self.block_m} if self.block_m in kind.tiles else {}
        return kind.choose(problem, problem.max_tokens_per_rank, num_sms=NUM_SMS, **tile)


def trials(headers: CudaHeaders, kernels: list[str], tiles: list[int], ranks: list[int]) -> Iterator[Trial]:
    """Every tile on every number of ranks with random data; one tile with the other data as well."""
    for kernel, own in (("sm100", tuple(SM100_TILES)), ("sm90", SM90_TILES)):
        if kernel not in kernels or (kernel == "sm90" and not headers.has(SM90_KERNEL, "kPullEagerPublish")):
            continue
        chosen = [tile for tile in own if not tiles or tile in tiles]
        yield from (Trial(kernel, count, tile, "random") for tile in chosen for count in ranks)
        yield from (Trial(kernel, max(ranks), chosen[0], data) for data in DATA if data != "random" and chosen)


def unequal(y: list[torch.Tensor], other: list[torch.Tensor]) -> int:
    """Elements that differ, over all ranks; 0 and -0 do not, NaN always does."""
    return sum(int((~(a == b)).sum()) for a, b in zip(y, other, strict=True))


def distance(y: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Relative, over all ranks: |y - other| / |other|."""
    got, want = torch.cat(y).double(), torch.cat(other).double()
    return float((got - want).norm() / want.norm())


def run_trial(headers: CudaHeaders, trial: Trial) -> dict[str, Any]:
    """Both kernels on the trial's data.  Raises SimError and HeadersError."""
    case = trial.case
    peer = trial.theirs(headers, case.problem)
    launches, report = run_peer(peer, case, LAUNCHES)
    moe = SimulatedMoE(compile_kernel(trial.ours(case.problem)), case.weights)
    ours, our_report = moe([Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)])
    reference = case.reference().y if trial.kernel == "sm100" else their_reference(case)
    return {
        "kernel": trial.kernel,
        "ranks": trial.ranks,
        "block_m": trial.block_m,
        "data": trial.data,
        "tokens": [len(x) for x in case.x],
        "launches": LAUNCHES,
        "elements": LAUNCHES * sum(one.numel() for one in ours),
        "unequal_to_ours": sum(unequal(y, ours) for y in launches),
        "unequal_to_reference": sum(unequal(y, reference) for y in launches),
        "from_ours": max(distance(y, ours) for y in launches),
        "from_reference": max(distance(y, reference) for y in launches),
        "findings": grouped(report.findings, peer.offsets),
        "our_findings": len(our_report.findings),
        "instructions": report.instructions,
        "seconds": round(report.seconds, 1),
    }


def run_inputs_trial(headers: CudaHeaders, arch: str) -> dict[str, Any]:
    """Both input kernels of an architecture on 33 tokens in a buffer for 40, a tenth of the slots masked."""
    recipe = "fp8xfp4" if arch == "sm_100a" else "fp8xfp8"
    config = PreDispatchConfig(replace(SHAPE, max_tokens_per_rank=40, recipe=recipe), NUM_SMS, arch)
    (inputs,) = draw_inputs(config, (33,), 0, mask=0.1, skew=False)
    theirs, report = run_inputs(headers, config, inputs)
    region = symmetric_buffer(config.problem, config.arch)
    sym, memory = torch.zeros(region.size, dtype=torch.uint8), GlobalMemory()
    artifact = compile_kernel(config)
    our_report = Simulator(artifact.ptx, memory).run([launch_of_ours(artifact, 0, inputs, sym, memory)])
    ours = {name: region.view(sym, name).contiguous().view(torch.uint8).flatten() for name in FIELDS}
    return {
        "kernel": f"inputs {arch}",
        "ranks": 1,
        "tokens": [inputs.num_tokens],
        "elements": sum(len(one) for one in ours.values()),
        "unequal_to_ours": sum(int((theirs[name] != ours[name]).sum()) for name in FIELDS),
        "findings": grouped(report.findings, {}),
        "our_findings": len(our_report.findings),
        "instructions": report.instructions,
        "seconds": round(report.seconds, 1),
    }


def gemm_trials() -> Iterator[tuple[str, GemmTile]]:
    """Kinds of groups, each with the tiles that DeepGEMM's host code may choose for it."""
    for tile in GEMM_TILES:
        yield DENSE, tile
        if tile.block_m == ROW_BLOCK:
            yield CONTIGUOUS, tile
        if ceil_div(GEMM_COLUMNS, tile.block_n) % tile.cluster == 0:
            yield MASKED, tile


def run_gemm_trial(headers: CudaHeaders, kind: str, tile: GemmTile) -> dict[str, Any]:
    """Both GEMMs on random data: 200 rows, or 131 of three groups; our tile has as many rows and columns where we have such."""
    counts = (200,) if kind == DENSE else (130, 0, 1)
    case = gemm_case(GemmProblem(n=GEMM_COLUMNS, k=384, kind=kind, num_groups=len(counts)), counts, exact=False)
    theirs, report = run_gemm(headers, case, tile, NUM_SMS)
    reference = case.reference("hopper")
    config = GemmConfig(case.problem, min(tile.block_m, ROWS[-1]), tile.block_n, NUM_SMS, cluster=tile.cluster)
    our_report = simulate_gemm(compile_kernel(config), case.tensors)
    rows = [slice(first, first + count) for _, first, count in case.spans]
    d, ours, wanted = ([one.flatten(0, -2)[part] for part in rows] for one in (theirs, case.tensors.d, reference))
    return {
        "kernel": f"gemm {kind}",
        "ranks": 1,
        "block_m": tile.block_m,
        "block_n": tile.block_n,
        "shared": tile.shared,
        "data": "random",
        "tokens": list(counts),
        "elements": sum(one.numel() for one in d),
        "unequal_to_ours": unequal(d, ours),
        "unequal_to_reference": unequal(d, wanted),
        "from_ours": distance(d, ours),
        "from_reference": distance(d, wanted),
        "findings": grouped(report.findings, {}),
        "our_findings": len(our_report.findings),
        "instructions": report.instructions,
        "seconds": round(report.seconds, 1),
    }


def passed(record: dict[str, Any]) -> bool:
    """Whether a record shows what its kernel must."""
    far = record.get("from_reference", 0.0)
    if record["kernel"] == "sm90":
        return far <= (RESCALED if record["block_m"] == 128 else 0.0)
    to_the_bit = record.get("data") == "exact" or record["kernel"].startswith("gemm")
    return record["unequal_to_ours"] == 0 and far <= (0.0 if to_the_bit else ROUNDED)


def describe(record: dict[str, Any]) -> str:
    """A record in one line."""
    columns = f" x {record['block_n']}" if "block_n" in record else ""
    tile = f", tiles of {record['block_m']}{columns}, {record['data']}" if "block_m" in record else ""
    places = f"{len(record['findings'])} places" if record["findings"] else "no place"
    findings = f"{sum(one['pairs'] for one in record['findings'])} findings in {places} (ours {record['our_findings']})"
    far = {name: f" by {record[name]:.2%}" if record.get(name) else "" for name in ("from_ours", "from_reference")}
    ours = f"{record['unequal_to_ours']} differ from ours{far['from_ours']}"
    reference = f", {record['unequal_to_reference']} from the reference{far['from_reference']}" if "unequal_to_reference" in record else ""
    verdict = "" if passed(record) else "  FAILED"
    return (
        f"{record['kernel']} on {record['ranks']} ranks{tile}: of {record['elements']} {ours}{reference}; {findings}; "
        f"{record['seconds']} s{verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="DeepGEMM's own kernels beside ours on simulated ranks.")
    parser.add_argument("site", type=Path, help="folder with the unpacked wheel, or a checkout")
    parser.add_argument("--cutlass", type=Path, help="CUTLASS's include folder, where the site has none")
    parser.add_argument("--kernels", default="sm100,sm90,inputs,gemm")
    parser.add_argument("--tiles", default="", help="tokens of a tile, separated by commas; default: all that the kernel has")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--cache", type=Path, default=Path("build/nvcc"), help="folder of nvcc's products")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    kernels, tiles, ranks = given.kernels.split(","), *([int(n) for n in text.split(",") if n] for text in (given.tiles, given.ranks))
    records = []
    try:
        headers = find_headers(given.site, given.cutlass, given.cache)
        print(f"{headers.name}, headers {headers.digest}", flush=True)
        jobs = [lambda trial=trial: run_trial(headers, trial) for trial in trials(headers, kernels, tiles, ranks)]
        if "inputs" in kernels:
            jobs += [lambda arch=arch: run_inputs_trial(headers, arch) for arch in ("sm_100a", "sm_90a") if has_inputs(headers, arch)]
        if "gemm" in kernels and headers.has(GEMM_HEADER):
            jobs += [lambda kind=kind, tile=tile: run_gemm_trial(headers, kind, tile) for kind, tile in gemm_trials()]
        for job in jobs:
            records.append({"headers": headers.digest, **job()})
            print(describe(records[-1]), flush=True)
    except (HeadersError, SimError) as error:
        sys.exit(f"error: {error}")
    print(f"wrote {save(given.out, 'beside_deep_gemm', records, str(given.site))}")
    sys.exit(not all(map(passed, records)))


if __name__ == "__main__":
    main()
