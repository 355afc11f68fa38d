"""A run of GEMM points on this host's GPU: kernels from a folder, records, and the file that they go to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...artifact.cache import compile_ahead, require_place
from ...artifact.store import ArtifactStore
from ...blocks.gemm.config import GemmConfig
from ...kernels.registry import find_kernel
from ...target import Target
from ..host import Host, HostError
from ..results import Recorded, Results
from ..variant import kernels_to_time
from .point import MOST, GemmPoint, candidates, within_reach


@dataclass(frozen=True)
class GemmRun:
    """Points to time, with folders of kernels and results."""

    points: tuple[GemmPoint, ...]
    artifacts: Path  # folder of compiled kernels; a missing chosen one is compiled if the DSL is installed
    out: Path  # folder of the JSON file
    variants: bool = False  # time all candidates in the folder, not only the chosen kernel

    def __post_init__(self) -> None:
        require_place("out", self.out)

    def check(self, host: Host) -> None:
        """Raises `HostError` for other GPUs than Hopper."""
        if host.arch != GemmConfig.arch:
            raise HostError("GPUs", f"of {host.arch.name}", f"of {GemmConfig.arch.name}: GEMMs of others are not timed")

    def compile(self, host: Host, jobs: int, most: int = MOST) -> int:
        """Compiles candidates that the folder lacks; returns how many.  Raises as `compile_ahead`."""
        found = (config for point in self.points for config in candidates(point, most))
        return compile_ahead(found, ArtifactStore(self.artifacts), jobs, "artifacts")

    def recorded(self) -> Recorded:
        return Recorded(self.out, "gemm")

    def measure(self, point: GemmPoint, store: ArtifactStore, host: Host) -> dict[str, Any]:
        from .session import run_point

        return run_point(point, configs_of(store, point, host.target, self.variants), store)

    def row(self, record: dict[str, Any]) -> str:
        from .session import table

        return table(record)

    def run(self, host: Host) -> Results:
        """Checks and times point by point and prints a table for each; the record of a failed point has an `error`.  Raises `ProblemError`
        and `HostError`."""
        self.check(host)
        found, store = self.recorded(), ArtifactStore(self.artifacts)
        for point in self.points:
            try:
                record = self.measure(point, store, host)
            except (RuntimeError, ValueError) as error:
                record = {**asdict(point), "error": f"{type(error).__name__}: {error}"}
            found.save(point.name, record, self.row)
        return found.done()

    @staticmethod
    def right(record: dict[str, Any]) -> bool:
        return "error" not in record and all(one["check"] is None or one["check"]["passed"] for one in record["kernels"])


def configs_of(store: ArtifactStore, point: GemmPoint, target: Target, variants: bool) -> list[GemmConfig]:
    """Kernels to run (`kernels_to_time`) that the estimate does not rule out (`within_reach`).  Raises `ArtifactError`."""
    chosen: GemmConfig = find_kernel("gemm").choose(point.problem, target, point.placed_rows)
    there = (one for one in store.configs(GemmConfig, point.problem) if store.path(one).exists())
    return within_reach(point, kernels_to_time(store, chosen, lambda: list(there), variants))
