"""A run of the expert-parallel kernels on this host's GPUs: what is compiled for it, its records, and the file that they go to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..artifact.cache import require_writable
from ..artifact.store import ArtifactStore
from ..artifact.workers import compile_into
from ..kernels.moe.halves.config import DispatchGemmConfig, EpConfig
from ..kernels.moe.halves.tables_config import RoutingTablesConfig
from ..problem import ProblemError
from .ep import DEFAULTS, Variant, configs_of, ep_point
from .host import Host
from .point import CurrentLayer, Layer, Point
from .process_group import RankWorker, run_jobs
from .report import trace_row
from .result_file import heading, result_path, write
from .trace import TRACED, trace_ep_point

LIMIT_S = 90.0


@dataclass(frozen=True)
class EpRun:
    """What is timed or traced, with the same number of ranks at all points.

    artifacts  folder of compiled kernels
    out        folder of the JSON file, and of traces
    variants   kernels with other fields, beside those that are chosen
    trace      say what warps do, instead of times

    Raises `ProblemError`.
    """

    points: tuple[Point, ...]
    artifacts: Path
    out: Path
    variants: tuple[Variant, ...] = ()
    trace: bool = False
    watchdog_ms: int = 5000

    def __post_init__(self) -> None:
        ranks = {one.ranks for one in self.points}
        if len(ranks) != 1:
            raise ProblemError("ranks", sorted(ranks), "one number for all points")
        if len({one.recipe for one in self.points}) != 1:
            raise ProblemError("recipe", sorted({one.recipe for one in self.points}), "one for all points")
        if self.watchdog_ms < 1:
            raise ProblemError("watchdog_ms", self.watchdog_ms, "at least 1")

    @property
    def kernels(self) -> tuple[Variant, ...]:
        """Those that are chosen, and the others."""
        return TRACED if self.trace else (*map(Variant, DEFAULTS), *self.variants)

    def configs(self, host: Host) -> list[Any]:
        """All that a host needs.  Raises `ConfigError`."""
        found = [one for point in self.points for one in self.configs_of(point, host)]
        return list(dict.fromkeys(self.with_tables(found)))

    @staticmethod
    def with_tables(configs: Sequence[EpConfig]) -> list[Any]:
        """These, and what makes the routing tables that they read."""
        return [*configs, *(RoutingTablesConfig.of(one) for one in configs if isinstance(one, DispatchGemmConfig))]

    def configs_of(self, point: Point, host: Host) -> Iterable[EpConfig]:
        """Kernels of the halves at a point.  Raises `ConfigError`."""
        return configs_of(point, host.target, self.kernels).values()

    @property
    def jobs(self) -> Sequence[Any]:
        """What records are made of, which have names: points."""
        return self.points

    def measure(self, job: Any, layers: CurrentLayer[Layer], store: ArtifactStore, host: Host) -> dict[str, Any]:
        """The record of a job; all ranks together."""
        layer, watchdog_ns = layers.of(job), self.watchdog_ms * 1_000_000
        if self.trace:
            return trace_ep_point(job, layer, store, watchdog_ns, self.out)
        return ep_point(job, layer, store, host.target, self.kernels, watchdog_ns)

    def line_of(self, record: dict[str, Any]) -> str:
        """A record in a line, or the table of a trace."""
        if "traced" in record:
            return "\n".join(trace_row({"name": f"{record['name']} {half}", **one}) for half, one in record["traced"].items())
        times = ", ".join(f"{name} {one['median']:.0f} us" for name, one in record["us"].items())
        differing = f"; NOT THE SAME BITS: {record['differing']}" if record["differing"] else ""
        return f"{record['name']}: {times}, dispatch alone {record['dispatch_alone_us']['median']:.0f} us{differing}"

    def compile(self, host: Host, jobs: int) -> int:
        """What the folder lacks; how many kernels there are.  Raises `ConfigError` and `CompileError`."""
        found = self.configs(host)
        compile_into(self.artifacts, found, jobs)
        return len(found)

    def run(self, host: Host, show: Callable[[str], None]) -> tuple[Path, list[dict[str, Any]]]:
        """Runs all points, a line for each; the results file, which is written after each, and the records in it.  One that fails has an
        `error`.  Raises `HostError` where there are too few GPUs, `ProblemError` where `out` cannot be written."""
        host.check(self.points)
        require_writable("out", self.out)
        path, head, records = result_path(self.out, "ep_moe"), heading(), list[dict[str, Any]]()

        def save(job: Any, record: dict[str, Any]) -> None:
            records.append({"name": job.name, **record})
            write(path, head, records)
            show(f"{job.name}: FAILED: {record['error']}" if "error" in record else self.line_of(records[-1]))

        with tempfile.TemporaryDirectory() as folder:
            worker = RankWorker(partial(work, run=self, host=host), self.points[0].ranks)
            run_jobs(worker, list(self.jobs), Path(folder), LIMIT_S, save, self.watchdog_ms / 1e3)
        return path, records


def well(record: dict[str, Any]) -> bool:
    """Whether it ran and was right."""
    return not ("error" in record or record.get("unequal", 0) or record.get("differing"))


def work(rank: int, jobs: list[Any], report: Callable[[int, dict[str, Any]], None], *, run: EpRun, host: Host) -> None:
    """Runs the jobs in a worker process of one rank, and reports each."""
    store, layers = ArtifactStore(run.artifacts), CurrentLayer(Layer)
    for index, job in enumerate(jobs):
        report(index, run.measure(job, layers, store, host))
