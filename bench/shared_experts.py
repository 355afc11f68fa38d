"""A shared expert in the fused launch, beside a dense layer added outside, in turns in the same process.

    python bench/shared_experts.py prepare FOLDER --preset deepseek-v3 --experts-per-rank 32 --ranks 2      where the DSL is
    python bench/shared_experts.py run FOLDER --preset deepseek-v3 --experts-per-rank 32 --ranks 2 --remote 0.875      where GPUs are

The dense layer is this project's own: a layer of one rank with one expert, which a torch addition follows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.point_options import RunOptions
from megamoe_dsl.bench.points import points_of
from megamoe_dsl.bench.process_group import run_points
from megamoe_dsl.bench.result_file import heading, result_path, write
from megamoe_dsl.bench.shared import shared_configs, shared_point
from megamoe_dsl.problem import ProblemError

LIMIT_S = 60.0
WATCHDOG_MS = 5000


def work(rank: int, points: list[Point], report: Callable[[int, dict[str, Any]], None], *, folder: Path) -> None:
    """A worker process."""
    for index, point in enumerate(points):
        report(index, shared_point(point, rank, ArtifactStore(folder)))


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    if "error" in record:
        return f"{record['name']}: FAILED: {record['error']}"
    us, graph = record["us"], record["graph_us"]
    times = ", ".join(f"{name} {us[name]['median']:.1f} us ({graph[name]['median']:.1f} in graphs)" for name in us)
    gain = us["outside"]["median"] / us["in the launch"]["median"]
    return f"{record['name']}: {times}; outside / in the launch {gain:.3f}; y {record['difference']:.1e} apart"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path, help="of compiled kernels")
    parser.add_argument("--preset", default="deepseek-v3", help="shapes by name")
    parser.add_argument("--experts-per-rank", type=int, help="routed ones, instead of all")
    parser.add_argument("--remote", type=float, help="fraction of the slots for other ranks' experts")
    parser.add_argument("--tokens", default="8,64,512,2048", help="per rank")
    parser.add_argument("--ranks", default="2", help="GPUs")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    options = RunOptions(preset=given.preset, experts_per_rank=given.experts_per_rank, tokens=given.tokens, ranks=given.ranks)
    records: list[dict[str, Any]] = []
    try:
        points = points_of(options, given.remote, least_tokens=1)
        host = Host.typical() if given.what == "prepare" else Host.find()
        if given.what == "prepare":
            compile_into(given.folder, [config for point in points for config in shared_configs(point, host.target)], given.jobs)
            return
        host.check(points)
    except ProblemError as error:
        parser.error(str(error))
    given.out.mkdir(parents=True, exist_ok=True)
    path, head = result_path(given.out, "shared_experts"), heading()

    def show(point: Point, record: dict[str, Any]) -> None:
        records.append({"name": point.name, **record})
        write(path, head, records)
        print(line_of(records[-1]), flush=True)

    run_points(partial(work, folder=given.folder), points, LIMIT_S, show, WATCHDOG_MS / 1e3)
    print(f"wrote {path}")
    sys.exit(any("error" in one for one in records))


if __name__ == "__main__":
    main()
