"""A run of the expert-parallel kernels on this host's GPUs: what is compiled for it, its records, and the file that they go to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..artifact.cache import require_writable
from ..artifact.store import ArtifactStore
from ..artifact.workers import compile_into
from ..kernels.moe.halves.config import DispatchGemmConfig
from ..kernels.moe.halves.tables_config import RoutingTablesConfig
from ..kernels.moe.sm90.config import Sm90Config
from ..kernels.moe.unfused.family import stage_configs
from ..problem import Problem, ProblemError
from .ep import DEFAULTS, SMALL, Variant, check_bits, configs_of, ep_point, without_clamp
from .ep_trace import TRACED, trace_ep_point
from .ep_unscaled import line_of as unscaled_line
from .ep_unscaled import point_configs, unscaled_point
from .host import Host
from .point import CurrentLayer, Point
from .process_group import RankWorker, run_jobs
from .report import trace_lines
from .result_file import heading, result_path, write

LIMIT_S = 90.0
BITS = {
    "bits": DEFAULTS,
    "bits without pairs": ("dispatch cluster=1", "combine cluster=1"),
    "bits of a gather": ("dispatch token_saving=off", "combine scatter=off"),
    "bits of rows that are gathered": ("dispatch rows=gathered", "combine"),
    "bits with tail SMs": ("dispatch tail_sms=8", "combine cluster=1"),
    "bits of results that warps send": ("dispatch", "combine interleaved=off token_blocks=2"),
}
"""What small cases are computed with."""


@dataclass(frozen=True)
class EpRun:
    """What is timed or traced, with the same number of ranks at all points.

    artifacts  folder of compiled kernels
    out        folder of the JSON file, and of traces
    variants   kernels with other fields, beside those that are chosen
    trace      say what warps do, instead of times
    bits       begin with small cases, on two ranks, whose bits are the reference's

    Raises `ProblemError`.
    """

    points: tuple[Point, ...]
    artifacts: Path
    out: Path
    variants: tuple[Variant, ...] = ()
    trace: bool = False
    bits: bool = False
    watchdog_ms: int = 5000

    def __post_init__(self) -> None:
        ranks = {one.ranks for one in self.points}
        if len(ranks) != 1:
            raise ProblemError("ranks", sorted(ranks), "one number for all points")
        if self.bits and ranks != {SMALL.num_ranks}:
            raise ProblemError("ranks", sorted(ranks), f"{SMALL.num_ranks}, those of the small cases")
        if len({one.recipe for one in self.points}) != 1:
            raise ProblemError("recipe", sorted({one.recipe for one in self.points}), "one for all points")
        if self.watchdog_ms < 1:
            raise ProblemError("watchdog_ms", self.watchdog_ms, "at least 1")

    @property
    def small(self) -> Problem:
        """Of small cases: number formats are those of the points."""
        return replace(SMALL, recipe=self.points[0].recipe)

    @property
    def unscaled(self) -> bool:
        """Whether the points have formats that the fused kernel does not take."""
        return not self.small.formats.scaled

    @property
    def kernels(self) -> tuple[Variant, ...]:
        """Those that are chosen, and the others."""
        return TRACED if self.trace else (*map(Variant, DEFAULTS), *self.variants)

    def configs(self, host: Host) -> list[Any]:
        """All that a host needs.  Raises `ConfigError`."""
        of_point = point_configs if self.unscaled and not self.trace else configs_of
        found: list[Any] = [one for point in self.points for one in of_point(point, host.target, self.kernels).values()]
        if self.bits:
            found += [Variant(name).config(self.small, host.target) for names in BITS.values() for name in names]
        found += [RoutingTablesConfig.of(one) for one in found if isinstance(one, DispatchGemmConfig)]
        fused = [] if self.trace or self.unscaled else [fused_config(point, host) for point in self.points]
        return list(dict.fromkeys([*found, *fused, *(stage for one in fused for stage in stage_configs(one))]))

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

        def save(job: Point | str, record: dict[str, Any]) -> None:
            records.append({"name": job.name if isinstance(job, Point) else job, **record})
            write(path, head, records)
            show(line_of(records[-1]))

        jobs = [*(BITS if self.bits else ()), *self.points]
        with tempfile.TemporaryDirectory() as folder:
            worker = RankWorker(partial(work, run=self, host=host), self.points[0].ranks)
            run_jobs(worker, jobs, Path(folder), LIMIT_S, save, self.watchdog_ms / 1e3)
        return path, records


def well(record: dict[str, Any]) -> bool:
    """Whether it ran and was right."""
    return not ("error" in record or record.get("unequal", 0) or record.get("differing"))


def fused_config(point: Point, host: Host) -> Sm90Config:
    """The fused kernel of a point, without a clamp, as the activation between the two kernels."""
    return Sm90Config.choose(without_clamp(point.problem), point.tokens, num_sms=host.num_sms, gpu=host.gpu)


def work(rank: int, jobs: list[Point | str], report: Callable[[int, dict[str, Any]], None], *, run: EpRun, host: Host) -> None:
    """A worker process."""
    store, layers, watchdog_ns = ArtifactStore(run.artifacts), CurrentLayer(), run.watchdog_ms * 1_000_000
    for index, job in enumerate(jobs):
        if isinstance(job, str):
            record = check_bits(rank, store, run.small, *(Variant(name).fields for name in BITS[job]))
        elif run.trace:
            record = trace_ep_point(job, layers.of(job), store, watchdog_ns, run.out)
        elif run.unscaled:
            record = unscaled_point(job, layers.of(job), store, host.target, run.kernels, watchdog_ns)
        else:
            record = ep_point(job, layers.of(job), store, fused_config(job, host), run.kernels, watchdog_ns)
        report(index, record)


def line_of(record: dict[str, Any]) -> str:
    """A record in a line, or the table of a trace."""
    if "error" in record:
        return f"{record['name']}: FAILED: {record['error']}"
    if record["name"] in BITS:
        equal = record["elements"] - record["unequal"]
        return f"{record['name']}: {equal:,} of {record['elements']:,} elements equal in {record['launches']} launches"
    if "traced" in record:
        lines = [trace_lines({"name": f"{record['name']} {half}", **one}) for half, one in record["traced"].items()]
        return "\n".join(line for some in lines for line in some)
    if "differences" in record:
        return unscaled_line(record)
    times = ", ".join(f"{name} {one['median']:.0f} us" for name, one in record["us"].items())
    stages = ", ".join(f"{name.removeprefix('moe_')} {us:.0f}" for name, us in record["stages_us"].items())
    alone = f"dispatch alone {record['dispatch_alone_us']['median']:.0f} us"
    bandwidth = ", ".join(f"{name} {one:.0f} GB/s" for name, one in record["gb_per_s"].items())
    differing = f"; NOT THE SAME BITS: {record['differing']}" if record["differing"] else ""
    return (
        f"{record['name']}: {times}, {alone} ({stages}); {bandwidth}; y {record['difference']:.3f} away from the fused kernel's{differing}"
    )
