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
from dataclasses import dataclass
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
from megamoe_dsl.options.option import option
from megamoe_dsl.options.points import PRESETS, PROBLEM, TOKENS, PointOptions
from megamoe_dsl.problem import ProblemError
from script_options import add_options, at_least, read_options
from script_points import record_points

LIMIT_S = 120.0
WATCHDOG_MS = 5000


@dataclass(frozen=True)
class FusionOptions(PointOptions):
    """Of this script."""

    DEFAULT_PRESETS = "flash,pro"

    preset: str | None = option(None, PRESETS, PROBLEM, DEFAULT_PRESETS)
    tokens: str = option("1,8,64,512,2048,8192", TOKENS, PROBLEM)
    ranks: str = option("2", "GPUs, as in 1 or 2,4.", PROBLEM)
    remote: float | None = option(None, "Fraction of the slots for other ranks' experts.", PROBLEM)
    torch: bool = option(False, "Also the layer in torch alone, BF16.")
    out: Path = option(Path("bench/results"), "Folder of the JSON file.")


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
    add_options(parser.add_argument, FusionOptions)
    parser.add_argument("--launches", type=at_least(1), default=40, help="that are compared at a point")
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes that compile")
    given = parser.parse_args()
    if given.what == "table":
        found = json.loads(given.folder.read_text())["records"]
        print(markdown(found), picture(found), sep="\n\n")
        return
    try:
        points = points_of(read_options(FusionOptions, given), given.remote)
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
