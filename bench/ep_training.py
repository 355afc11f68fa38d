"""Times `MoE` with its gradients over the GPUs of a host, in BF16: each pass, and both.

    python bench/ep_training.py prepare FOLDER [--points qwen3-30b-a3b:4096 ...] [--ranks 2]      where the DSL is: compiles the kernels
    python bench/ep_training.py run FOLDER [--points ...] [--ranks 2] [--turns N] [--out FOLDER]      where the GPUs are

Points are those of `bench/training.py`, whose `table` reads the records, with the tokens of a rank; experts are shared among the ranks.
Beside it in turns: `EpMoE` with SwiGLU in torch, `MoE` with each GPU as a node, whose rows NCCL moves and whose experts `moe` computes,
and torch alone, by two exchanges of NCCL and `grouped_mm`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd

from difference import relative_difference
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.process_group import RankWorker, run_jobs
from megamoe_dsl.bench.results import Recorded
from megamoe_dsl.bench.timing import REPEATS
from megamoe_dsl.cases import TokenInputs
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.kernels.moe.halves.gemm_part import ACTIVATED
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import no_scales
from megamoe_dsl.quant.weights import unscaled_weights
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.moe_layer import EP_MOE, MoE
from megamoe_dsl.runtime.preparation import expert_kernels, halves_kernels
from moe_layers.passes import Passes, summary
from script_options import at_least
from torch_layer import TorchLayer
from training import BF16_ERROR, NAMES, SHAPES, TARGET, TrainingPoint, draw_layer

OURS, CALLERS, NODES, TORCH = "MoE", "EpMoE", "nodes of one GPU", "torch"
LIMIT_S, WATCHDOG_S = 150.0, 60.0
EVERY = 64
"""Rows of a node are a multiple of so many where kernels are compiled ahead: equal ones serve those between."""


def problem_of(point: TrainingPoint, ranks: int) -> Problem:
    layer = point.layer
    return Problem(layer.hidden, layer.intermediate, layer.num_experts, layer.topk, ranks, point.tokens, recipe=layer.recipe)


def configs(point: TrainingPoint, ranks: int) -> Iterator[Any]:
    """Kernels of both of our layers; of `moe` those for all rows that a node may get."""
    problem = problem_of(point, ranks)
    for dispatch in ({}, {"gate_up": ACTIVATED}):
        yield from halves_kernels(problem, TARGET, dispatch, train=True)
    own = replace(point.layer, num_experts=problem.experts_per_rank)
    yield from expert_kernels(own, TARGET, range(point.tokens // 2, ranks * point.tokens + 1, EVERY))


def exchange(rows: torch.Tensor, incoming: Any, outgoing: Any) -> torch.Tensor:
    """Rows of all ranks, with a gradient."""
    return all_to_all_single_autograd(rows, list(incoming), list(outgoing), dist.group.WORLD)


def passes_of(point: TrainingPoint, ranks: int) -> Passes:
    """Of one rank, on the same tensors."""
    problem = problem_of(point, ranks)
    tensors, idx, dy = draw_layer(point.layer, point.tokens, problem.experts_per_rank, point.tokens + dist.get_rank())
    x, w1, w2, given = tensors.values()
    weights = unscaled_weights(w1, w2)
    far = TorchLayer(problem, weights, exchange)
    far.load(TokenInputs(x, no_scales(x), idx, given))
    layers: dict[str, Any] = {OURS: MoE(problem, weights, launch=EP_MOE), CALLERS: EpMoE(problem, weights, activation=far.activate)}
    if ranks > 1:
        layers[NODES] = MoE(problem, weights, domain=1)
    forwards = {name: partial(layer, x, idx, given) for name, layer in layers.items()} | {TORCH: lambda: far.result().bfloat16()}
    return Passes(forwards, {way: list(tensors.values()) for way in forwards}, dy)


def run_point(point: TrainingPoint, ranks: int, turns: int) -> dict[str, Any]:
    """All ranks together; distances of gradients are from torch's."""
    passes = passes_of(point, ranks)
    expected = passes.gradients(TORCH)
    own = [way for way in passes.forwards if way != TORCH]
    errors = {
        way: {name: relative_difference(*pair) for name, *pair in zip(NAMES, passes.gradients(way), expected, strict=True)} for way in own
    }
    del expected
    same = passes.same_bits(OURS, OURS)
    used = passes.memory()
    us, tflops = passes.times(turns, point.flop)
    return {
        "point": str(point),
        "shape": SHAPES[point.name],
        "ranks": ranks,
        "gpu": torch.cuda.get_device_name(),
        "us": {name: asdict(one) for name, one in us.items()},
        "tflops": tflops,
        "bytes": used,
        "errors": errors,
        "same_bits": same,
        "passed": same and all(error <= 2 * BF16_ERROR for each in errors.values() for error in each.values()),
    }


def work(rank: int, points: list[TrainingPoint], report: Callable[[int, dict[str, Any]], None], *, ranks: int, turns: int) -> None:
    """A worker process."""
    for index, point in enumerate(points):
        report(index, run_point(point, ranks, turns))
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    every = [TrainingPoint(name, tokens) for name in SHAPES for tokens in (4096, 16384)]
    parser.add_argument("--points", nargs="*", type=TrainingPoint.parse, default=every)
    parser.add_argument("--ranks", type=at_least(1), default=2)
    parser.add_argument("--turns", type=at_least(1), default=REPEATS)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    if given.what == "prepare":
        found = dict.fromkeys(config for point in given.points for config in configs(point, given.ranks))
        compile_into(given.folder, list(found), os.cpu_count() or 1)
        return
    os.environ[FOLDER_VARIABLE] = str(given.folder)  # where layers find their kernels
    found = Recorded(given.out, "ep_training")
    worker = RankWorker(partial(work, ranks=given.ranks, turns=given.turns), given.ranks)
    run_jobs(worker, given.points, LIMIT_S, lambda point, one: found.save(str(point), one, summary), WATCHDOG_S)
    sys.exit(not all(one.get("passed") for one in found.done().records))


if __name__ == "__main__":
    main()
