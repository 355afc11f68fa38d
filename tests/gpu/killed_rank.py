"""A rank is killed: the others name it, their launches end, and the same processes go on with a layer of the ranks that are left.

    python tests/gpu/killed_rank.py prepare FOLDER [--ranks 8]            where the DSL is
    python tests/gpu/killed_rank.py run FOLDER [--ranks 8] [--gpus 1]     on the GPUs, which ranks share in turns: a process each

Each rank writes a line of what it was told and how long that took; the exit code is 1 when one of them was wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import Case, random_inputs, random_weights
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.watchdog import WatchdogError
from megamoe_dsl.target import Target

TOKENS, SEED = 16, 5
WATCHDOG_NS, LIMIT_S, GROUP_S = 300 * 10**9, 20.0, 240.0
SHARED = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""Several ranks on a GPU, and processes of one host."""


def problem_of(ranks: int) -> Problem:
    return Problem(512, 256, 2 * ranks, 2, ranks, TOKENS, recipe="fp8xfp8", activation_clamp=10.0)


def wrong(layer: MegaMoE, rank: int, calls: int) -> int:
    """Elements of y that are farther from the reference than they may be, of so many calls; all ranks together."""
    problem = layer.problem
    weights = [random_weights(problem, one, SEED) for one in range(problem.num_ranks)]
    bad = 0
    for call in range(calls):
        given = [random_inputs(problem, one, TOKENS - one % 3, SEED + call) for one in range(problem.num_ranks)]
        x, x_sf, idx, factors = (tensor.cuda() for tensor in given[rank])
        y = layer(x, idx, factors, x_sf=x_sf)
        layer.synchronize(LIMIT_S)
        columns: Any = [list(column) for column in zip(*given, strict=True)]
        case = Case(problem, *columns, weights, exact=False)
        want, bound = case.reference().y[rank].double(), case.bound()[rank].double()
        bad += int((~((y.cpu().double() - want).abs() <= bound)).sum())
    return bad


def layer_of(ranks: int, rank: int, store: ArtifactStore) -> MegaMoE:
    problem = problem_of(ranks)
    weights = random_weights(problem, rank, SEED).map(lambda tensor: tensor.cuda())
    return MegaMoE(problem, weights, store=store, watchdog_ns=WATCHDOG_NS, bf16_inputs=False)


def join(folder: str, name: str, rank: int, ranks: int) -> None:
    store = dist.FileStore(str(Path(folder, name)), ranks)
    dist.init_process_group("cpu:gloo,cuda:gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=GROUP_S))


def work(rank: int, ranks: int, gpus: int, kernels: Path, folder: str) -> None:
    """One process.  It leaves through `os._exit`, with 0 when all was as it should be."""
    torch.set_num_threads(1)
    torch.cuda.set_device(rank * gpus // ranks)
    join(folder, "all", rank, ranks)
    store, lost = ArtifactStore(kernels), ranks // 2
    layer = layer_of(ranks, rank, store)
    bad = wrong(layer, rank, 2)
    dist.barrier()
    if rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    start, told = time.monotonic(), ""
    x, x_sf, idx, factors = (tensor.cuda() for tensor in random_inputs(layer.problem, rank, TOKENS, SEED))
    try:
        for _ in range(3):
            layer(x, idx, factors, x_sf=x_sf)
        layer.synchronize(LIMIT_S)
    except WatchdogError as error:
        told = str(error)
    seconds = time.monotonic() - start
    layer.symmetric.close(alone=True)
    dist.destroy_process_group()
    left = [one for one in range(ranks) if one != lost]
    join(folder, "left", left.index(rank), len(left))
    bad_after = wrong(layer_of(len(left), left.index(rank), store), left.index(rank), 3)
    named = f"rank {rank}, " in told and f"rank {lost} did not report" in told and ("dispatch" in told or "combine" in told)
    print(f"rank {rank}: {bad} wrong before, {bad_after} after, told in {seconds:.1f} s: {told or 'nothing'}", flush=True)
    dist.barrier()
    os._exit(not (named and bad == bad_after == 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args()
    if given.what == "prepare":
        for ranks in (given.ranks, given.ranks - 1):
            MegaMoE.prepare(problem_of(ranks), bounds=(), target=Target.typical("sm_90a"), store=ArtifactStore(given.folder))
        return
    os.environ.update(SHARED)
    with TemporaryDirectory() as folder:
        context = get_context("spawn")
        arguments = (given.ranks, given.gpus, given.folder, folder)
        processes = [context.Process(target=work, args=(rank, *arguments)) for rank in range(given.ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(GROUP_S)
            process.kill()
    codes = [process.exitcode for process in processes]
    print(f"exit codes {codes}")
    sys.exit(codes != [-signal.SIGKILL if rank == given.ranks // 2 else 0 for rank in range(given.ranks)])


if __name__ == "__main__":
    main()
