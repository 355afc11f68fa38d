"""The engines' call sequences (tests/engines.py) on GPUs, with CUDA graphs and a process per rank: the bits of the module `MegaMoE`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine_configs import problem_of
from engines import ENGINES, Inputs3, call_sequence
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import random_inputs, random_weights
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.runtime.layer import MegaMoE


def capture(step: Callable[[], list[torch.Tensor]]) -> tuple[list[torch.Tensor], Callable[[], None]]:
    """A CUDA graph: what it returns, and how it is replayed."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return outputs, graph.replay


def check_engine(rank: int, ranks: int, engine: str, store: ArtifactStore) -> None:
    """Raises AssertionError where a step's y is not that of `MegaMoE`."""
    problem, kind = problem_of(ranks), ENGINES[engine]
    weights = [random_weights(problem, rank, seed, "cuda") for seed in (1, 2)]
    modules = [MegaMoE(problem, one, store=store) for one in weights]
    swap = kind.install()
    layers = [kind(problem, dist.group.WORLD, one) for one in weights]

    def inputs(tokens: int, seed: int) -> Inputs3:
        _, _, idx, topk_weights = random_inputs(problem, rank, tokens, seed, "cuda", mask=0.1)
        generator = torch.Generator("cuda").manual_seed(seed * 100 + rank)
        return torch.randn(tokens, problem.hidden, generator=generator, device="cuda").bfloat16(), idx, topk_weights

    def check(index: int, given: Inputs3, y: torch.Tensor) -> None:
        want = modules[index](*given)
        if not torch.equal(y, want):
            raise AssertionError(f"rank {rank}, layer {index}, {len(y)} tokens: {int((y != want).sum())} of {y.numel()} elements differ")

    def reload() -> ExpertWeights:
        new = random_weights(problem, rank, 3, "cuda")
        modules[0].load_weights(new)
        return new

    call_sequence(layers, lambda size: inputs(size, 100), inputs, check, capture, reload, idle=bool(rank % 2))
    torch.cuda.synchronize()
    swap.undo()
    for one in modules:
        one.symmetric.close()


def work(rank: int, jobs: list[str], report: Callable[[int, dict[str, Any]], None], *, ranks: int, folder: Path) -> None:
    """The worker process: engines by name."""
    os.environ[FOLDER_VARIABLE] = str(folder)
    for index, name in enumerate(jobs):
        check_engine(rank, ranks, name, ArtifactStore(folder))
        dist.barrier()
        torch.cuda.synchronize()
        report(index, {})
