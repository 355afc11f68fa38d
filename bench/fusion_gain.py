"""What fusion gains: the layer in one launch and in one launch per stage, in the same process and in turns, with time and energy.

    python bench/fusion_gain.py prepare FOLDER [options]      where the DSL is: compiles the kernels
    python bench/fusion_gain.py run FOLDER [options]          on GPUs: torch and cuda-bindings are enough
    python bench/fusion_gain.py table FILE                    anywhere: the table and the picture of docs/lab/fusion.md

Before it times a point, it compares y of both, every element, over launches with masked, skewed and empty routing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fusion import fusion_point, line_of
from fusion_report import markdown, picture
from megamoe_dsl import SM90, Target, choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import CurrentLayer, Layer, Point, points_of
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.options.option import at_least
from megamoe_dsl.options.points import RunOptions
from megamoe_dsl.problem import ProblemError
from script_points import record_points

LIMIT_S = 120.0
WATCHDOG_MS = 5000


def config_of(point: Point, host: Host) -> Sm90Config:
    """The fused kernel of a point."""
    return choose(point.problem, Target(SM90, host.num_sms, host.gpu), point.tokens, **point.pool)


def work(
    rank: int, points: list[Point], report: Callable[[int, dict[str, Any]], None], *, folder: Path, host: Host, launches: int, far: bool
) -> None:
    """A worker process: points of one shape share their weights."""
    store, layers = ArtifactStore(folder), CurrentLayer(Layer)
    for index, point in enumerate(points):
        report(index, fusion_point(point, layers.of(point), store, config_of(point, host), WATCHDOG_MS * 1_000_000, launches, far))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run", "table"))
    parser.add_argument("folder", type=Path, help="of compiled kernels; of table, what a run wrote")
    parser.add_argument("--preset", default="flash,pro", help="shapes by name")
    parser.add_argument("--experts-per-rank", type=at_least(1), help="instead of all")
    parser.add_argument("--remote", type=float, help="fraction of the slots for other ranks' experts")
    parser.add_argument("--recipe", default=Sm90Config.recipes[0], help="number formats")
    parser.add_argument("--tokens", default="1,8,64,512,2048,8192", help="per rank")
    parser.add_argument("--ranks", default="2", help="GPUs")
    parser.add_argument("--launches", type=at_least(1), default=40, help="that are compared at a point")
    parser.add_argument("--torch", action="store_true", help="also the layer in torch alone, BF16")
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes that compile")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    if given.what == "table":
        found = json.loads(given.folder.read_text())["records"]
        print(markdown(found), picture(found), sep="\n\n")
        return
    options = RunOptions(
        preset=given.preset, experts_per_rank=given.experts_per_rank, recipe=given.recipe, tokens=given.tokens, ranks=given.ranks
    )
    try:
        points = points_of(options, given.remote)
        if given.what == "prepare":
            configs = [config_of(point, Host.typical()) for point in points]
            compile_into(given.folder, [one for config in configs for one in (config, *stage_configs(config))], given.jobs)
            return
        host = Host.find()
        host.check(points)
    except ProblemError as error:
        parser.error(str(error))
    job = partial(work, folder=given.folder, host=host, launches=given.launches, far=given.torch)
    records = record_points(job, points, given.out, "fusion_gain", line_of, LIMIT_S, WATCHDOG_MS / 1e3)
    sys.exit(any("error" in one or not one["agreement"]["passed"] for one in records))


if __name__ == "__main__":
    main()
