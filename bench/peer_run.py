"""Another project's kernels on two GPUs, in one process each: a job after another, and a record of each as soon as it is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cuda_library import CudaLibrary
from megamoe_dsl.bench.process_group import RankWorker, run_jobs
from megamoe_dsl.bench.results import Recorded

RANKS = 2
LIMIT_S, WATCHDOG_S = 60.0, 20.0
Measure = Callable[[Any, CudaLibrary], dict[str, Any]]


def work(
    rank: int,
    jobs: list[Any],
    report: Callable[[int, dict[str, Any]], None],
    *,
    library: Path,
    symbols: Mapping[str, str],
    measure: Measure,
) -> None:
    """A worker process."""
    run = CudaLibrary(library, symbols)
    for index, job in enumerate(jobs):
        report(index, measure(job, run))


def run_peer(
    name: str,
    library: Path,
    symbols: Mapping[str, str],
    measure: Measure,
    jobs: Sequence[Any],
    out: Path,
    unit: Callable[[dict[str, Any], str], str],
) -> None:
    """Jobs, which have a `name`, into a file of `name` in `out`, and a line for each: its times, and what `unit` says of each kernel beside
    them.  Ends the process, with 1 when a job failed."""
    found = Recorded(out, name)

    def show(job: Any, record: dict[str, Any]) -> None:
        found.add({"name": job.name, **record})
        figures = [f"{kernel} {us:.0f} us{unit(record, kernel)}" for kernel, us in record.get("us", {}).items()]
        print(f"{job.name}: {record.get('error') or '; '.join(figures)}", flush=True)

    worker = RankWorker(partial(work, library=library, symbols=symbols, measure=measure), RANKS)
    run_jobs(worker, list(jobs), LIMIT_S, show, WATCHDOG_S)
    sys.exit(any("error" in one for one in found.done().records))
