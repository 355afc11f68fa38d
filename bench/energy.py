"""Time and energy per call of the fused kernel and of the baseline, in turns, in the same process.

    python bench/energy.py FOLDER --ranks 2 --remote 0.875 --preset flash --experts-per-rank 32 --baseline SITE

FOLDER has the kernels (bench/compile_artifacts.py makes them where the DSL is).  Energy is what NVML says each GPU has consumed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.baselines import find_baseline
from megamoe_dsl.bench.energy_point import energy_point, line_of
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.options import at_least
from megamoe_dsl.bench.point import CurrentLayer, Point
from megamoe_dsl.bench.point_options import RunOptions
from megamoe_dsl.bench.points import points_of
from megamoe_dsl.bench.process_group import RankWorker, run_jobs
from megamoe_dsl.bench.result_file import save
from megamoe_dsl.kernels.mega_moe.sm90.config import Sm90Config
from megamoe_dsl.problem import ProblemError

LIMIT_S = 60.0
WATCHDOG_MS = 5000


def work(
    rank: int, points: list[Point], report: Callable[[int, dict[str, Any]], None], *, folder: Path, host: Host, site: str | None
) -> None:
    """A worker process: points of one shape share their weights."""
    store, layers = ArtifactStore(folder), CurrentLayer(site)
    for index, point in enumerate(points):
        config = Sm90Config.choose(point.problem, point.tokens, num_sms=host.num_sms, gpu=host.gpu)
        report(index, energy_point(point, layers.of(point), store, config, WATCHDOG_MS * 1_000_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of compiled kernels")
    parser.add_argument("--preset", default="flash", help="shapes by name")
    parser.add_argument("--experts-per-rank", type=at_least(1), help="instead of all")
    parser.add_argument("--remote", type=float, help="fraction of the slots for other ranks' experts")
    parser.add_argument("--recipe", default=Sm90Config.recipes[0], help="number formats")
    parser.add_argument("--tokens", default="512,2048,8192", help="per rank")
    parser.add_argument("--ranks", default="2", help="GPUs")
    parser.add_argument("--baseline", help="folder with the baseline's unpacked wheels")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    options = RunOptions(
        preset=given.preset, experts_per_rank=given.experts_per_rank, recipe=given.recipe, tokens=given.tokens, ranks=given.ranks
    )
    records: list[dict[str, Any]] = []
    try:
        points = points_of(options, given.remote, least_tokens=1)
        if given.baseline is not None:
            find_baseline(Path(given.baseline))
        host = Host.find()
        host.check(points)
    except ProblemError as error:
        parser.error(str(error))

    def show(point: Point, record: dict[str, Any]) -> None:
        records.append({"name": point.name, **record})
        print(line_of(records[-1]), flush=True)

    for ranks in dict.fromkeys(point.ranks for point in points):
        mine = [point for point in points if point.ranks == ranks]
        worker = RankWorker(partial(work, folder=given.folder, host=host, site=given.baseline), ranks)
        with tempfile.TemporaryDirectory() as folder:
            run_jobs(worker, mine, Path(folder), LIMIT_S, show, WATCHDOG_MS / 1e3)
    print(f"wrote {save(given.out, 'energy', records, given.baseline)}")
    sys.exit(any("error" in one for one in records))


if __name__ == "__main__":
    main()
