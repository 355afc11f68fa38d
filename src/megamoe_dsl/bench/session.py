"""A benchmark of the fused layer: times or traces points in worker processes, prints a row for each and writes a JSON file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..artifact.cache import compile_ahead, require_place
from ..artifact.store import ArtifactError, ArtifactStore
from ..inspect.spans import spans_of, summarize, write_perfetto
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import find_kernel
from ..problem import Problem, ProblemError
from ..runtime.buffers import Inputs
from ..runtime.symmetric_memory import SymmetricBuffer
from .host import Host
from .point import FP8, SEED, CurrentLayer, Layer, Point, measure_point
from .process_group import RankWorker, run_jobs
from .results import HEADINGS, Recorded, Results, passed, timed_row, trace_row
from .timing import run_earlier_batches, synchronize
from .variant import candidates, kernels_to_time, variant_name

LAUNCHES = 8  # The stamps of the last are kept, when the ranks run in step.


def traced(stamps: torch.Tensor, out: Path, name: str) -> dict[str, Any]:
    """Entries of a record from a launch's time stamps; also writes a file for Perfetto."""
    spans = list(spans_of(stamps))
    write_perfetto(out / f"trace-{name.replace(' ', '-').replace('=', '')}.json", spans)
    return {"trace": summarize(spans), "launch_us": max((one.end for one in spans), default=0.0)}


def trace_point(session: Session, point: Point, layer: Layer, store: ArtifactStore, configs: list[MegaMoeConfig]) -> dict[str, Any]:
    """Traces the first kernel; all ranks together.  Rank 0 records its own launch and writes a Perfetto file to `out`."""
    problem = point.problem
    symmetric = SymmetricBuffer.allocate(problem, configs[0].arch, **point.pool)
    kernel = layer.bind(store, configs[0], symmetric, session.watchdog_ns)
    y = torch.empty(point.tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
    run_earlier_batches(point.draw, lambda batch: kernel.buffers.load(Inputs(*batch)), [partial(kernel, y)])
    kernel.buffers.load(Inputs(*point.draw(SEED)))
    synchronize()
    for _ in range(LAUNCHES):
        kernel(y)
    kernel.synchronize()
    record: dict[str, Any] = {"point": asdict(point), "made_by": store.origin(configs[0])}
    if dist.get_rank() == 0:
        record |= traced(kernel.buffers.trace, session.out, point.name)
    symmetric.close()
    return record


POINT_LIMIT_S = 240.0


@dataclass(frozen=True)
class LayerRun:
    """Points of layers to time or to trace; worker processes get it pickled.  Raises `ProblemError`."""

    points: Sequence[Point]
    artifacts: Path  # folder of compiled kernels; missing ones are compiled when the DSL is installed
    out: Path  # folder of the JSON files, and of traces
    watchdog_ms: int = field(default=5000, kw_only=True)  # limit of every wait in a kernel

    def __post_init__(self) -> None:
        if self.watchdog_ms < 1:
            raise ProblemError("watchdog_ms", self.watchdog_ms, "at least 1")
        require_place("out", self.out)

    @property
    def watchdog_ns(self) -> int:
        return self.watchdog_ms * 1_000_000

    def check(self, host: Host) -> None:
        host.check(self.points)

    def layer(self, problem: Problem) -> Layer:
        return Layer(problem)


def run_ranks(run: Any, ranks: int, jobs: Mapping[str, Any], found: Recorded, host: Host) -> None:
    """Calls `measure` of a `LayerRun` for each job in worker processes, one per rank, and saves the records under the jobs' names."""
    worker, watchdog_s = RankWorker(partial(work, run=run, host=host), ranks), run.watchdog_ms / 1e3
    run_jobs(worker, list(jobs.items()), POINT_LIMIT_S, lambda job, one: found.save(job[0], one, run.row), watchdog_s)


def work(rank: int, jobs: list[tuple[str, Any]], report: Callable[[int, dict[str, Any]], None], *, run: Any, host: Host) -> None:
    """Body of a worker: points of one shape share their weights."""
    store, layers = ArtifactStore(run.artifacts), CurrentLayer(run.layer)
    for index, (_, job) in enumerate(jobs):
        report(index, run.measure(job, layers, store, host))


@dataclass(frozen=True)
class Session(LayerRun):
    """Points of the fused layer to time or to trace, and how."""

    variants: bool = False  # take every kernel in the folder that fits a point, not only the configured one
    graphs: bool = True
    trace: bool = False

    def compile(self, host: Host, jobs: int) -> int:
        """Compiles candidates that the folder lacks; returns how many.  Raises as `compile_ahead`."""
        found = (candidates(point.problem, point.tokens, host.target, **point.pool) for point in self.points)
        return compile_ahead(chain.from_iterable(found), ArtifactStore(self.artifacts), jobs, "artifacts")

    def recorded(self, kind: str) -> Recorded:
        """The results file; `kind` begins its name."""
        return Recorded(self.out, f"{kind}-{'trace' if self.trace else 'time'}")

    def kernels(self, store: ArtifactStore, point: Point, host: Host) -> list[MegaMoeConfig]:
        """The kernels to measure, which are then in the store.  Raises `ArtifactError`."""
        return configs_of(store, point, host, self.variants, self.trace)

    def measure(self, job: Any, layers: CurrentLayer, store: ArtifactStore, host: Host) -> dict[str, Any]:
        """The record of a point and its kernels; all ranks together, complete on rank 0."""
        (point, configs), layer = job, layers.of(job[0])
        if self.trace:
            return trace_point(self, point, layer, store, configs)
        return measure_point(point, layer, store, configs, self.watchdog_ns, self.graphs)

    def row(self, record: dict[str, Any]) -> str:
        return (trace_row if self.trace else timed_row)(record)

    def run(self, host: Host) -> Results:
        """Runs all points on the GPUs of `host`, prints a row for each, and writes and returns the results.  Raises `HostError` for too few
        GPUs, and `ProblemError` if `out` cannot be written."""
        self.check(host)
        found, store = self.recorded(f"mega_moe_{host.arch.name.replace('_', '').rstrip('a')}"), ArtifactStore(self.artifacts)
        jobs: dict[int, dict[str, Any]] = {}
        if (ceilings := found.head["ceilings"]) != host.gpu:
            print(f"nobody has measured what {host.gpu} can do: ceilings are those of {ceilings}", flush=True)
        print(HEADINGS, flush=True)
        for point in self.points:
            try:
                jobs.setdefault(point.ranks, {})[point.name] = point, self.kernels(store, point, host)
            except Exception as error:  # a point without a kernel must not cost the others
                found.save(point.name, {"error": f"{type(error).__name__}: {error}"}, self.row)
        for ranks, mine in jobs.items():
            run_ranks(self, ranks, mine, found, host)
        return found.done()

    right = staticmethod(passed)


def configs_of(store: ArtifactStore, point: Point, host: Host, variants: bool, trace: bool = False) -> list[MegaMoeConfig]:
    """The chosen kernel, or with `variants` all that fit, for 4-bit weights those in FP8, too.  Raises as `kernels_to_time`."""
    chosen: MegaMoeConfig = find_kernel("mega_moe").choose(point.problem, host.target, point.tokens, trace=trace, **point.pool)
    others = [replace(point.problem, recipe=FP8)] if variants and point.problem.formats.promoted else []  # of the same tokens

    def there() -> list[MegaMoeConfig]:
        kinds = (one for p in dict.fromkeys([point.problem, *others]) for one in store.configs(type(chosen), p))
        return [one for one in kinds if alike(one, chosen) and loadable(store, one)]

    found = kernels_to_time(store, chosen, there, variants)
    return found if variants else found[:1]


def alike(one: MegaMoeConfig, other: MegaMoeConfig) -> bool:
    """Whether kernels of both can run on one symmetric buffer and are traced alike."""
    return (one.num_sms, one.trace, one.pool_rows) == (other.num_sms, other.trace, other.pool_rows)


def loadable(store: ArtifactStore, config: MegaMoeConfig) -> bool:
    """Whether the store has the kernel; prints a line for one compiled from other sources."""
    if not store.path(config).exists():
        print(f"made from other sources, left out: {variant_name(config)}", flush=True)
    try:
        store.load(config)
    except ArtifactError:
        return False
    return True
