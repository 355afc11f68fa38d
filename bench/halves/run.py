"""A run of the expert-parallel kernels beside what they are compared with: small cases first; the fused kernel; in BF16 FP8 and torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halves.beside_fused import fused_config, point_beside_fused
from halves.bits import BITS, SMALL, BitsJob, check_bits
from halves.unscaled import line_of as unscaled_line
from halves.unscaled import point_configs, unscaled_point
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.ep import EpRun, Variant
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import CurrentLayer, Point
from megamoe_dsl.kernels.moe.halves.config import EpConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.problem import Problem, ProblemError


@dataclass(frozen=True)
class ComparedRun(EpRun):
    """
    bits  begin with small cases, on two ranks, whose bits are the reference's

    Raises `ProblemError`.
    """

    bits: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks = self.points[0].ranks
        if self.bits and ranks != SMALL.num_ranks:
            raise ProblemError("ranks", [ranks], f"{SMALL.num_ranks}, those of the small cases")

    @property
    def small(self) -> Problem:
        """Of small cases: number formats are those of the points."""
        return replace(SMALL, recipe=self.points[0].recipe)

    @property
    def unscaled(self) -> bool:
        """Whether times are of formats that the fused kernel does not take."""
        return not (self.trace or self.small.formats.scaled)

    @property
    def jobs(self) -> Sequence[Any]:
        """Small cases, then points."""
        return [*(map(BitsJob, BITS) if self.bits else ()), *self.points]

    def configs(self, host: Host) -> list[Any]:
        """All that a host needs.  Raises `ConfigError`."""
        small = [Variant(name).config(self.small, host.target) for names in BITS.values() for name in names] if self.bits else []
        fused = [] if self.trace or self.unscaled else [fused_config(point, host) for point in self.points]
        stages = [stage for one in fused for stage in stage_configs(one)]
        return list(dict.fromkeys([*super().configs(host), *self.with_tables(small), *fused, *stages]))

    def configs_of(self, point: Point, host: Host) -> Iterable[EpConfig]:
        """Kernels of the halves at a point.  Raises `ConfigError`."""
        if self.unscaled:
            return point_configs(point, host.target, self.kernels).values()
        return super().configs_of(point, host)

    def measure(self, job: Any, layers: CurrentLayer, store: ArtifactStore, host: Host) -> dict[str, Any]:
        """The record of a job; all ranks together."""
        if isinstance(job, BitsJob):
            return check_bits(store, self.small, *(Variant(name).fields for name in BITS[job.name]))
        if self.unscaled:
            return unscaled_point(job, layers.of(job), store, host.target, self.kernels, self.watchdog_ms * 1_000_000)
        if self.trace:
            return super().measure(job, layers, store, host)
        record = point_beside_fused(self, job, layers.of(job), store, host)
        times = {"dispatch": record["us"]["dispatch"], "alone": record["dispatch_alone_us"]}
        rates = {name: algorithm_bandwidth(job.problem, record["rows"], one["median"]) for name, one in times.items()}
        return record | {"gb_per_s": rates}

    def row(self, record: dict[str, Any]) -> str:
        """A record in a line, or the table of a trace."""
        if record["name"] in BITS:
            equal = record["elements"] - record["unequal"]
            return f"{record['name']}: {equal:,} of {record['elements']:,} elements equal in {record['launches']} launches"
        if "differences" in record:
            return unscaled_line(record)
        if "traced" in record:
            return super().row(record)
        stages = ", ".join(f"{name.removeprefix('moe_')} {us:.0f}" for name, us in record["stages_us"].items())
        bandwidth = "".join(f"; {name} {one:.0f} GB/s" for name, one in record["gb_per_s"].items())
        return f"{super().row(record)} ({stages}){bandwidth}; y {record['difference']:.3f} away from the fused kernel's"


def algorithm_bandwidth(problem: Problem, rows: Mapping[str, int], us: float) -> float:
    """GB/s of dispatch: the bytes of a row for each of this rank's pairs, whoever sent it and however often, over the time."""
    return rows["pairs"] * problem.formats.activations.row_bytes(problem.hidden) / us / 1e3
