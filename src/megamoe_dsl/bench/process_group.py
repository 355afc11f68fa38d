"""Worker processes, one per GPU, whose failure or hang costs the job they were at and no other."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..runtime.watchdog import GRACE_S

BACKEND_VARIABLE = "MEGAMOE_BENCH_BACKEND"  # gloo: workers without CUDA
POLL_S = 0.2
START_S = 180.0  # for imports and the process group
READY = "ready.json"
MARGIN_S = 3.0  # for what a rank says of its failure


@dataclass(frozen=True)
class RankWorker:
    """What a worker does: `work(rank, jobs, report)`, where rank 0 calls `report(job index, record)` after every job."""

    work: Callable[[int, list[Any], Callable[[int, dict[str, Any]], None]], None]
    ranks: int


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _run_rank(rank: int, worker: RankWorker, port: int, jobs: list[Any], folder: str) -> None:
    """Entry point of a worker process.  Leaves through `os._exit`: with a dead CUDA context an orderly exit can hang."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(worker.ranks)}
    os.environ.update({**environment, "LOCAL_RANK": str(rank)})
    from ..runtime.symmetric_memory import disable_multicast

    disable_multicast()
    results = Path(folder, "results.jsonl")

    def report(index: int, record: dict[str, Any]) -> None:
        if rank == 0:
            with results.open("a") as file:
                file.write(json.dumps({"index": index, "record": record}) + "\n")

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
            Path(folder, READY).touch()
        worker.work(rank, jobs, report)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        Path(folder, f"error{rank}.json").write_text(json.dumps({"rank": rank, "error": f"{type(error).__name__}: {error}"[:1000]}))
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
        with TemporaryDirectory() as folder:
            done, error = _run_once(worker, left, Path(folder), limit_s, on_record, watchdog_s + GRACE_S + MARGIN_S)
        left = left[done:]
        if left and error is not None:
            on_record(left[0], {"error": error})
            left = left[1:]


def _run_once(
    worker: RankWorker, jobs: list[Any], folder: Path, limit_s: float, on_record: Callable[[Any, dict[str, Any]], None], grace_s: float
) -> tuple[int, str | None]:
    """(jobs finished, what went wrong)."""
    context, port = get_context("spawn"), _free_port()
    processes = [context.Process(target=_run_rank, args=(rank, worker, port, jobs, str(folder))) for rank in range(worker.ranks)]
    for process in processes:
        process.start()
    done, failed_at, ready = 0, None, False
    last, limit = time.monotonic(), START_S
    results = folder / "results.jsonl"
    try:
        while True:
            alive = any(process.is_alive() for process in processes)
            lines = results.read_text().splitlines() if results.exists() else []
            for line in lines[done:]:
                entry = json.loads(line)
                on_record(jobs[entry["index"]], entry["record"])
                done, last = done + 1, time.monotonic()
            if not alive:
                break
            now = time.monotonic()
            if failed_at is None and any(process.exitcode not in (None, 0) for process in processes):
                failed_at = now
            if not ready and (folder / READY).exists():
                ready, last, limit = True, now, limit_s
            patience = grace_s if done < len(jobs) else 0.0  # with all jobs done there is nothing more to say
            if now - last > limit or (failed_at is not None and now - failed_at > patience):
                break
            time.sleep(POLL_S)
        codes = [process.exitcode for process in processes]  # None: alive
        timed_out = None in codes and failed_at is None
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        for process in processes:
            process.join()
    if timed_out:
        return done, f"no result within {limit:.0f} s"
    if all(process.exitcode == 0 for process in processes):
        return done, None if done == len(jobs) else "workers ended early"
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("error*.json"))]
    told = {one["rank"]: one["error"] for one in reports}
    for rank, code in enumerate(codes):
        if code not in (None, 0):
            told.setdefault(rank, f"ended with exit code {code}")
    return done, "; ".join(f"rank {rank}: {told[rank]}" for rank in sorted(told))
