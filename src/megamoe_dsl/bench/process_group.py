"""Worker processes, one per GPU.  A crash or a hang costs only the job at hand: new processes run the rest."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from ..runtime.watchdog import GRACE_S

BACKEND_VARIABLE = "MEGAMOE_BENCH_BACKEND"  # gloo: workers without CUDA
START_S = 180.0  # for imports and the process group
READY = None  # Sent by rank 0 when the process group is up.
MARGIN_S = 3.0  # for a rank to report its failure


@dataclass(frozen=True)
class RankWorker:
    """Processes of `ranks` ranks that call `work(rank, jobs, report)`; rank 0 calls `report(job index, record)` after every job."""

    work: Callable[[int, list[Any], Callable[[int, dict[str, Any]], None]], None]
    ranks: int


def _run_rank(rank: int, worker: RankWorker, port: int, jobs: list[Any], parent: Connection) -> None:
    """Entry point of a worker process, which sends rank 0's records as (index, JSON), and the text of an error.  Leaves through `os._exit`:
    with a dead CUDA context an orderly exit can hang."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(worker.ranks)}
    os.environ.update({**environment, "LOCAL_RANK": str(rank)})
    from ..runtime.symmetric_memory import disable_multicast

    disable_multicast()

    def report(index: int, record: dict[str, Any]) -> None:
        if rank == 0:
            parent.send((index, json.dumps(record)))

    code = 0
    try:
        import torch
        import torch.distributed as dist

        backend = os.environ.get(BACKEND_VARIABLE, "nccl")
        if backend == "nccl":
            torch.cuda.set_device(rank)
            dist.init_process_group(backend, rank=rank, world_size=worker.ranks, device_id=torch.device("cuda", rank))
        else:
            dist.init_process_group(backend, rank=rank, world_size=worker.ranks)
        if rank == 0:
            parent.send(READY)
        worker.work(rank, jobs, report)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        parent.send(f"{type(error).__name__}: {error}"[:1000])
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_jobs(
    worker: RankWorker, jobs: list[Any], limit_s: float, on_record: Callable[[Any, dict[str, Any]], None], watchdog_s: float
) -> None:
    """Runs all jobs in order, in processes that live for as many jobs as they can.  After a failure, or `limit_s` seconds without a
    finished job, the job at hand gets a record {"error": ...} and new processes take the rest. When one rank has failed, the others, which
    may wait for it, have until their watchdogs (`watchdog_s`) have fired and they have said so. `on_record(job, record)` is called here, as
    soon as a record is there."""
    left = list(jobs)
    while left:
        done, error = _run_once(worker, left, limit_s, on_record, watchdog_s + GRACE_S + MARGIN_S)
        left = left[done:]
        if left:
            on_record(left[0], {"error": error})
            left = left[1:]


def _run_once(
    worker: RankWorker, jobs: list[Any], limit_s: float, on_record: Callable[[Any, dict[str, Any]], None], grace_s: float
) -> tuple[int, str | None]:
    """Number of finished jobs, and the error or None."""
    context = get_context("spawn")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    processes, running, told = [], dict[Connection, int](), dict[int, str]()  # by the end of a pipe, the rank at the other
    for rank in range(worker.ranks):
        theirs, ours = Pipe(duplex=False)
        running[theirs] = rank
        processes.append(context.Process(target=_run_rank, args=(rank, worker, port, jobs, ours)))
        processes[rank].start()
        ours.close()  # the process's own is then the last one, and its end is the pipe's
    done, failed, limit = 0, False, START_S
    end = time.monotonic() + limit
    try:
        while running and (speaking := wait(list(running), max(0.0, end - time.monotonic()))):
            for pipe in cast(list[Connection], speaking):
                try:
                    said: Any = pipe.recv()
                except (EOFError, OSError):
                    process = processes[running.pop(pipe)]
                    process.join()
                    if process.exitcode and not failed:  # with all jobs done the others have nothing more to say
                        failed, end = True, time.monotonic() + (grace_s if done < len(jobs) else 0.0)
                    continue
                if isinstance(said, str):
                    told[running[pipe]] = said
                    continue
                if said is not READY:
                    on_record(jobs[said[0]], json.loads(said[1]))
                    done += 1
                if not failed:
                    limit, end = limit_s, time.monotonic() + limit_s
    finally:
        for process in processes:
            process.kill()
            process.join()
    if running and not failed:
        return done, f"no result within {limit:.0f} s"
    for rank in set(range(worker.ranks)) - set(running.values()):
        if code := processes[rank].exitcode:
            told.setdefault(rank, f"ended with exit code {code}")
    if not told:
        return done, None if done == len(jobs) else "workers ended early"
    return done, "; ".join(f"rank {rank}: {told[rank]}" for rank in sorted(told))
