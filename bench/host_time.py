"""Host time and all of the time per call of the layer, of its kernel, of a torch addition and of the baseline, on one GPU.

    python bench/host_time.py prepare FOLDER                      where the DSL is: compiles the kernels
    python bench/host_time.py run FOLDER [--baseline SITE]        on a GPU: torch and cuda-bindings are enough

Points are one rank with its share of a preset's experts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from baselines import find_baseline
from baselines.layer import LayerBeside
from call_times import CALLS, REPEATS, measure_host, text_of
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import FP8, Point
from megamoe_dsl.bench.variant import kind_of
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.preparation import layer_kernels
from megamoe_dsl.runtime.rank_kernel import WATCHDOG_NS
from megamoe_dsl.target import Target
from script_options import at_least
from script_points import record_points, shares_of

LIMIT_S = 180.0


def configs_of(points: list[Point], sms: int | None) -> list[Any]:
    """Kernels of the layers at these points, as chosen on the GPU that the tables know and on one that they do not; with `sms` SMs."""
    found: dict[Any, None] = {}
    for one in points:
        host = Host.typical(kind_of(one.recipe).arch)
        for gpu in (host.gpu, None):
            found |= dict.fromkeys(layer_kernels(one.problem, Target(host.arch, sms or host.num_sms, gpu), ()))
    return list(found)


def work(
    rank: int,
    points: list[Point],
    report: Callable[[int, dict[str, Any]], None],
    *,
    folder: Path,
    site: str | None,
    how_often: dict[str, int],
) -> None:
    """The worker process: a process group of one rank, which the baseline asks for."""
    for index, point in enumerate(points):
        report(index, measure_host(point, LayerBeside(point.problem, site), ArtifactStore(folder), **how_often))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path, help="of compiled kernels")
    parser.add_argument("--points", type=shares_of, default="flash:1,flash:8", help="PRESET:TOKENS, separated by commas")
    parser.add_argument("--recipe", default=FP8, help="number formats, by name")
    parser.add_argument("--sms", type=at_least(2), help="of the GPU that kernels are compiled for, if it is not one as most people have it")
    parser.add_argument("--baseline", help="folder with the baseline's unpacked wheels")
    parser.add_argument("--calls", type=at_least(1), default=CALLS, help="between two looks at the clock")
    parser.add_argument("--repeats", type=at_least(1), default=REPEATS, help="of which the median is taken")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    points = [replace(one, recipe=given.recipe) for one in given.points]
    try:
        kind_of(given.recipe)
        if given.what == "prepare":
            compile_into(given.folder, configs_of(points, given.sms), 2)
            return
        if given.baseline is not None:
            find_baseline(Path(given.baseline), given.recipe)
        Host.find()
    except ProblemError as error:
        parser.error(str(error))
    job = partial(work, folder=given.folder, site=given.baseline, how_often={"count": given.calls, "repeats": given.repeats})
    records = record_points(job, points, given.out, "host_time", text_of, LIMIT_S, WATCHDOG_NS / 1e9, given.baseline)
    sys.exit(any("error" in one or one["errors"] for one in records))


if __name__ == "__main__":
    main()
