"""A script that compiles kernels for points in one place and times them in turns, point by point, in another."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import Point, points_of
from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.options.points import RunOptions
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.target import Target
from script_points import record_points

LIMIT_S = 60.0
WATCHDOG_MS = 5000


@dataclass(frozen=True)
class InTurns:
    """What such a script does.

    kind     of its results files
    configs  every kernel that a point needs
    measure  a point on a rank, with kernels of a store: the record
    line_of  a record in a line
    """

    kind: str
    configs: Callable[[Point, Target], Sequence[KernelConfig]]
    measure: Callable[[Point, int, ArtifactStore], dict[str, Any]]
    line_of: Callable[[dict[str, Any]], str]

    def work(self, rank: int, points: list[Point], report: Callable[[int, dict[str, Any]], None], *, folder: Path) -> None:
        """A worker process."""
        for index, point in enumerate(points):
            report(index, self.measure(point, rank, ArtifactStore(folder)))

    def main(self, description: str | None, **defaults: str | int) -> None:
        """The command; `defaults` of its options."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("what", choices=("prepare", "run"))
        parser.add_argument("folder", type=Path, help="of compiled kernels")
        parser.add_argument("--preset", help="shapes by name")
        parser.add_argument("--experts-per-rank", type=int, help="routed ones, instead of all")
        parser.add_argument("--remote", type=float, help="fraction of the slots for other ranks' experts")
        parser.add_argument("--tokens", help="per rank")
        parser.add_argument("--ranks", help="GPUs")
        parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
        parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
        parser.set_defaults(**defaults)
        given = parser.parse_args()
        options = RunOptions(preset=given.preset, experts_per_rank=given.experts_per_rank, tokens=given.tokens, ranks=given.ranks)
        try:
            points = points_of(options, given.remote, least_tokens=1)
            host = Host.typical() if given.what == "prepare" else Host.find()
            if given.what == "prepare":
                compile_into(given.folder, [config for point in points for config in self.configs(point, host.target)], given.jobs)
                return
            host.check(points)
        except ProblemError as error:
            parser.error(str(error))
        sys.exit(self.run(points, given.folder, given.out))

    def run(self, points: list[Point], folder: Path, out: Path) -> bool:
        """Writes the results file; whether a point failed."""
        records = record_points(partial(self.work, folder=folder), points, out, self.kind, self.line_of, LIMIT_S, WATCHDOG_MS / 1e3)
        return any("error" in one for one in records)
