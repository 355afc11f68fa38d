"""FlashInfer's MegaMoE kernels of SM100 (CuTe DSL) on one simulated rank, beside ours and the reference with their numerics.

    git clone https://github.com/flashinfer-ai/flashinfer CHECKOUT
    git -C CHECKOUT checkout fb28d7242
    python bench/beside_flashinfer.py CHECKOUT

Their kernels run several times (`VIEWS`), so that each kind of finding goes with what explains it: docs/lab/studies.md.  Status 1: y is
farther from the reference than FP32 sums explain, although bulk stores were awaited.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.cases import random_case
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, interleave_gate_up, quantize_nvfp4
from megamoe_dsl.recipe import ExpertFactors
from megamoe_dsl.reference import combine, linear1, linear2, requantize
from megamoe_dsl.reference.moe import LayerInputs
from megamoe_dsl.reference.routing import route
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.simulated import SimulatedMoE
from megamoe_dsl.sim.host import module

KERNELS = Path("flashinfer", "moe_ep", "kernel_src")
GATE_UP = {"bf16xbf16": 32, "mxfp8xmxfp8": 32, "nvfp4xnvfp4": 16}
"""Rows of gate, then of up, in their weights."""
SHAPE = Problem(512, 256, 8, 2, max_tokens_per_rank=133, recipe="bf16xbf16")
NVFP4 = "nvfp4xnvfp4"
NUM_SMS, FULL, CLOSE = 4, 1024, 1e-4
INPUTS, RESULT, Y = "inputs", "result.json", "y"  # files of a run


@dataclass(frozen=True)
class View:
    """How their kernels are looked at.

    options  of `stand_in.program`
    patched  waits for bulk stores to be read are waits for them to be there
    full     every expert has full tiles
    """

    name: str
    options: tuple[str, ...] = ("--assume-tensor-fences",)
    patched: bool = False
    full: bool = False


VIEWS = (
    View("by PTX", ()),
    View("tcgen05 fences assumed"),
    View("stores awaited, too", patched=True),
    View("tiles full, too", patched=True, full=True),
    View("tiles full, stores not awaited", full=True),
)


def drawn(recipe: str, tokens: int, full: bool) -> LayerInputs:
    """Of NVFP4 all factors are 1."""
    tokens = FULL if full else tokens
    problem = replace(SHAPE, max_tokens_per_rank=tokens, recipe=SHAPE.recipe if recipe == NVFP4 else recipe)
    case = random_case(problem, (tokens,), 0, exact=False)
    if full:
        case = replace(case, topk_idx=[torch.arange(tokens * problem.topk).remainder(problem.num_experts).view(tokens, -1)])
    if recipe != NVFP4:
        return case
    one = torch.ones(())
    (x, x_sf), (weights,) = quantize_nvfp4(case.x[0], one), case.weights
    (fc1, fc1_sf), (fc2, fc2_sf) = quantize_nvfp4(weights.fc1, one), quantize_nvfp4(weights.fc2, one)
    given = ExpertWeights(fc1, fc1_sf, fc2, fc2_sf, factors=torch.ones(problem.num_experts, len(ExpertFactors._fields)))
    return replace(case, problem=replace(problem, recipe=recipe), x=[x], x_sf=[x_sf], weights=[given])


def reference(recipe: str, inputs: LayerInputs) -> torch.Tensor:
    """y where gate and up stay in FP32, as they do in their kernels."""
    outputs = torch.zeros(inputs.problem.topk, len(inputs.x[0]), inputs.problem.hidden)
    for job in inputs.jobs(route(inputs.problem, inputs.topk_idx)):
        gate, up = linear1(job.x, job.x_sf, job.own.fc1, job.own.fc1_sf).chunk(2, dim=1)
        values = requantize(gate * gate.sigmoid() * up * job.weight[:, None], recipe, torch.ones(()))
        outputs[job.rows[:, 2], job.rows[:, 1]] = linear2(*values, job.own.fc2, job.own.fc2_sf).float()
    return combine(outputs, inputs.topk_idx[0])


def bytes_to(place: torch.Tensor, given: torch.Tensor) -> None:
    """Into the first rows and columns."""
    place[: given.shape[0], : given.shape[1]].view(torch.uint8).copy_(given.contiguous().view(torch.uint8))


def run_theirs(recipe: str, inputs: LayerInputs) -> torch.Tensor:
    """y, in a process that stands in for a GPU's host."""
    from cutedsl_megamoe.shim import bf16, mxfp8, nvfp4  # type: ignore[import-not-found]
    from moe_nvfp4_swapab.runner_common import to_blocked  # type: ignore[import-not-found]

    problem, (weights,) = inputs.problem, inputs.weights
    sizes = (problem.num_experts, problem.max_tokens_per_rank, problem.topk, problem.hidden)
    make, inner = {
        "bf16xbf16": (bf16.get_symm_buffer_for_bf16_mega_moe, problem.intermediate),
        "mxfp8xmxfp8": (mxfp8.get_symm_buffer_for_mxfp8_mega_moe, problem.intermediate),
        "nvfp4xnvfp4": (nvfp4.get_symm_buffer_for_mega_moe, 2 * problem.intermediate),
    }[recipe]
    buffer: Any = make(*sizes, inner, 0, 1)
    bytes_to(buffer.x, inputs.x[0])
    bytes_to(buffer.topk_idx, inputs.topk_idx[0])
    bytes_to(buffer.topk_weights, inputs.topk_weights[0])
    rows = GATE_UP[recipe]
    linears = [one.clone().cuda().view(buffer.x.dtype).transpose(1, 2) for one in (interleave_gate_up(weights.fc1, rows), weights.fc2)]
    if recipe == "bf16xbf16":
        launch = bf16.MegaMoEBf16Inputs(buffer.x, buffer.topk_idx, buffer.topk_weights, *linears, buffer.combine_output)
        results: torch.Tensor = buffer._frontend.run(launch, sync=True)
        return results.cpu().float().sum(1).bfloat16()
    bytes_to(buffer.x_sf, inputs.x_sf[0])
    scales = [
        torch.stack([to_blocked(one.contiguous().view(torch.uint8)) for one in sf]).cuda().view(buffer.x_sf.dtype)
        for sf in (interleave_gate_up(weights.fc1_sf, rows), weights.fc2_sf)
    ]
    call = mxfp8.mxfp8_mega_moe if recipe == "mxfp8xmxfp8" else nvfp4.nvfp4_mega_moe
    y = torch.empty(len(inputs.x[0]), problem.hidden, dtype=torch.bfloat16, device="cuda")
    call(y, *zip(linears, scales, strict=True), buffer, sync=True)
    return y.cpu()


def theirs(checkout: Path, recipe: str, inputs: LayerInputs, options: list[str], patched: bool) -> tuple[torch.Tensor, dict[str, Any]]:
    """Their y, and what the simulator saw."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.save(inputs, folder / INPUTS)
        stand_in = ["-m", "stand_in.program", "--num-sms", str(NUM_SMS), "--result", str(folder / RESULT), *options]
        own = [str(checkout.resolve()), "--recipes", recipe, "--folder", name, *(["--patched"] if patched else [])]
        environment = {**os.environ, "MEGA_NO_DIST": "1", "FLASHINFER_MOE_EP_SKIP_DSL_CHECK": "1"}  # one rank without NVSHMEM
        command = [sys.executable, *stand_in, __file__, *own]
        done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{recipe}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
        return torch.load(folder / Y), json.loads((folder / RESULT).read_text())


def await_stores() -> None:
    """Waits for bulk stores to be read become waits for them to be there, in kernels that are simulated from now on."""
    load = module.load
    module.load = lambda ptx, name: load(ptx.replace("cp.async.bulk.wait_group.read", "cp.async.bulk.wait_group"), name)


def distance(y: torch.Tensor, other: torch.Tensor) -> float:
    """Relative."""
    return float((y.double() - other.double()).norm() / other.double().norm())


def beside(checkout: Path, recipe: str, tokens: int, findings: bool) -> bool:
    """Runs one recipe of theirs and of ours, and tells how they compare; whether all results are right where stores are awaited."""
    right = True
    for view in VIEWS:
        inputs = drawn(recipe, tokens, view.full)
        y, seen = theirs(checkout, recipe, inputs, list(view.options), view.patched)
        far = distance(y, reference(recipe, inputs))
        right &= far <= CLOSE or not view.patched
        print(f"{recipe}, {view.name}: {far:.1e} from the reference, {len(seen['findings'])} findings, {seen['instructions']} instructions")
        for one in seen["findings"] if findings else []:
            print(f"    {one['text']}")
    inputs = drawn(recipe, tokens, full=False)
    kernel = compile_kernel(choose(inputs.problem, Target.typical("sm_100a", NUM_SMS), tokens))
    given = Inputs(inputs.x[0], inputs.x_sf[0], inputs.topk_idx[0], inputs.topk_weights[0])
    (ours,), report = SimulatedMoE(kernel, inputs.weights)([given])
    far = distance(ours, reference(recipe, inputs))
    print(f"{recipe}, ours: {far:.1e} from that reference, {len(report.findings)} findings, {report.instructions} instructions")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--recipes", nargs="+", choices=GATE_UP, default=list(GATE_UP))
    parser.add_argument("--tokens", type=int, default=133)
    parser.add_argument("--findings", action="store_true", help="print them")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--patched", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not (given.checkout / KERNELS).is_dir():
        parser.error(f"{given.checkout} has no folder {KERNELS}")
    if given.folder:
        sys.path.insert(0, str(given.checkout / KERNELS))
        if given.patched:
            await_stores()
        inputs = torch.load(given.folder / INPUTS, weights_only=False)
        torch.save(run_theirs(given.recipes[0], inputs), given.folder / Y)
        return
    results = [beside(given.checkout, one, given.tokens, given.findings) for one in given.recipes]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
