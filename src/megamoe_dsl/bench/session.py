"""A benchmark run: points in worker processes, a table as they come in, one JSON file at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..artifact.cache import require_place, require_writable
from ..artifact.store import ArtifactError, ArtifactStore, dsl_version
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.unfused.family import stage_configs
from ..kernels.registry import find_kernel
from ..problem import ProblemError
from .baselines import find_baseline
from .host import Host
from .point import FP8, CurrentLayer, Point, measure_point
from .process_group import RankWorker, run_jobs
from .report import HEADINGS, row
from .result_file import heading, result_path, write
from .results import Results
from .soak import soak_point
from .trace import trace_point
from .unfused import UNFUSED
from .variant import variant_name

POINT_LIMIT_S = 240.0


@dataclass(frozen=True)
class Session:
    """Options of a run.

    artifacts      folder of compiled kernels; missing ones are compiled when the DSL is installed
    out            folder of the JSON files
    baseline       folder with the baseline's wheels, or None
    variants       time every kernel in the folder that fits a point, not only the configured one
    soak           0, or consecutive launches per point to compare instead of timing
    check          "unfused": compare every element with the unfused layer's (unfused.py); or None
    trace          say where the time of a launch goes, from a traced kernel, instead of timing
    watchdog_ms    limit of every wait in a kernel
    other_sources  take kernels of other sources too: only where those lay out the buffers as the present ones do
    """

    points: list[Point]
    artifacts: Path
    out: Path
    baseline: str | None = None
    variants: bool = False
    graphs: bool = True
    soak: int = 0
    check: str | None = None
    trace: bool = False
    watchdog_ms: int = 5000
    other_sources: bool = False

    def __post_init__(self) -> None:
        """Raises `ProblemError`."""
        if self.soak < 0:
            raise ProblemError("soak", self.soak, "0 or a number of launches")
        for point in self.points:
            if self.soak and point.remote is not None:
                raise ProblemError("remote", point.remote, "None with a soak, which has routings of its own")
        if self.check not in (None, UNFUSED):
            raise ProblemError("check", self.check, f"{UNFUSED}, or left out")
        if self.check is not None and self.trace:
            raise ProblemError("check", self.check, "left out with a trace")
        if self.watchdog_ms < 1:
            raise ProblemError("watchdog_ms", self.watchdog_ms, "at least 1")
        if self.soak and self.trace:
            raise ProblemError("trace", self.trace, "False with a soak")
        if self.baseline is not None:
            find_baseline(Path(self.baseline))
        require_place("out", self.out)


def configs_of(
    store: ArtifactStore, point: Point, host: Host, variants: bool, trace: bool = False, other_sources: bool = False
) -> list[MegaMoeConfig]:
    """Kernels to run: the chosen configuration; with `variants` all that are there, it first, those of FP8 weights too; all traced or none.

    Where the DSL is, the chosen one is made if need be.  Where it is not, the first one in the store stands in for it.  Raises
    `ArtifactError` when there is none, or none but of other sources, which are taken only with `other_sources`."""
    chosen: MegaMoeConfig = find_kernel("mega_moe").choose(point.problem, host.target, point.tokens, trace=trace)
    if dsl_version() is not None and not variants:
        store.get(chosen)
        return [chosen]
    others = [replace(point.problem, recipe=FP8)] if variants and FP8 in chosen.recipes else []
    problems = dict.fromkeys([point.problem, *others])
    there = [one for p in problems for one in store.configs(type(chosen), p) if (one.num_sms, one.trace) == (chosen.num_sms, trace)]
    there = [config for config in there if loadable(store, config, other_sources)]
    if not there:
        store.get(chosen)
        return [chosen]
    if variants:
        return sorted(there, key=lambda one: one != chosen)
    return [chosen] if chosen in there else [there[0]]


def loadable(store: ArtifactStore, config: MegaMoeConfig, other_sources: bool) -> bool:
    """Whether there is such a kernel; a line about one of other sources, taken or not."""
    if not store.path(config).exists():
        print(f"made from other sources, {'taken' if other_sources else 'left out'}: {variant_name(config)}", flush=True)
    try:
        store.load(config, any_sources=other_sources)
    except ArtifactError:
        return False
    return True


def work(
    rank: int, jobs: list[tuple[Point, list[MegaMoeConfig]]], report: Callable[[int, dict[str, Any]], None], *, session: Session
) -> None:
    """Body of a worker: points of one shape share their weights."""
    store = ArtifactStore(session.artifacts)
    layers = CurrentLayer(None if session.soak or session.trace else session.baseline)
    limit, unfused = session.watchdog_ms * 1_000_000, session.check is not None
    for index, (point, configs) in enumerate(jobs):
        if session.soak:
            record = soak_point(point, layers.of(point), store, configs, limit, session.soak, unfused)
        elif session.trace:
            record = trace_point(point, layers.of(point), store, configs, limit, session.out)
        else:
            record = measure_point(point, layers.of(point), store, configs, limit, session.graphs, unfused)
        report(index, record)


def run_session(session: Session, host: Host) -> Results:
    """Runs all points on the GPUs of `host`, prints a line for each, writes the JSON file; returns what is in it.

    Raises `HostError` for points that the host has too few GPUs for, and `ProblemError` where `out` cannot be written."""
    host.check(session.points)
    require_writable("out", session.out)
    store = ArtifactStore(session.artifacts)
    records: list[dict[str, Any]] = []
    head = heading(session.baseline)
    kind = "soak" if session.soak else "trace" if session.trace else "time"
    path = result_path(session.out, f"mega_moe_{host.arch.name.replace('_', '').rstrip('a')}-{kind}")

    def save(point: Point, record: dict[str, Any]) -> None:
        records.append({"name": point.name, **record})
        print(row(records[-1]), flush=True)
        write(path, head, records)

    jobs: dict[int, list[tuple[Point, list[MegaMoeConfig]]]] = {}
    if head["ceilings"] != host.gpu:
        print(f"nobody has measured what {host.gpu} can do: ceilings are those of {head['ceilings']}", flush=True)
    print(HEADINGS, flush=True)
    for point in session.points:
        try:
            configs = configs_of(store, point, host, session.variants, session.trace, session.other_sources)
            if session.check is not None and dsl_version() is not None:
                for config in configs:
                    for stage in stage_configs(config):
                        store.get(stage)
            jobs.setdefault(point.ranks, []).append((point, configs))
        except Exception as error:  # a point without a kernel must not cost the others
            save(point, {"error": f"{type(error).__name__}: {error}"})
    for ranks, mine in jobs.items():
        with tempfile.TemporaryDirectory() as folder:
            worker = RankWorker(partial(work, session=session), ranks)
            run_jobs(worker, mine, Path(folder), POINT_LIMIT_S, lambda job, record: save(job[0], record), session.watchdog_ms / 1e3)
    print(f"wrote {path}")
    return Results(path.name, head["gpu"], tuple(records))
