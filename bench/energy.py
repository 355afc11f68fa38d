"""Time and energy per call of the fused kernel and of the baseline, in turns, in the same process.

    python bench/energy.py --artifacts FOLDER --ranks 2 --remote 0.875 --preset flash --experts-per-rank 32 --baseline SITE

FOLDER has the kernels (bench/compile_artifacts.py makes them where the DSL is, with --unfused those of --linears).  Energy is what
NVML says each GPU has consumed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from baselines import find_baseline
from baselines.layer import LayerBeside, baseline_option
from energy_point import energy_point, line_of
from megamoe_dsl.artifact.cache import require_place
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import CurrentLayer, Point
from megamoe_dsl.bench.point_options import VariantOptions
from megamoe_dsl.bench.points import points_of
from megamoe_dsl.bench.result_file import heading, result_path, write
from megamoe_dsl.bench.session import configs_of
from megamoe_dsl.options.option import add_options, naming_options, option, read_options
from megamoe_dsl.problem import ProblemError
from script_points import run_points

LIMIT_S = 60.0


@dataclass(frozen=True)
class EnergyOptions(VariantOptions):
    """Of this script."""

    baseline: str | None = baseline_option()
    linears: bool = option(False, "Also Linear1 and Linear2 alone, the stages of the unfused layer.")


def work(rank: int, points: list[Point], report: Callable[[int, dict[str, Any]], None], *, options: EnergyOptions, host: Host) -> None:
    """A worker process: points of one shape share their weights."""
    store, layers = ArtifactStore(options.artifacts), CurrentLayer(partial(LayerBeside, site=options.baseline))
    for index, point in enumerate(points):
        configs = configs_of(store, point, host, options.variants)
        report(index, energy_point(point, layers.of(point), store, configs, options.watchdog_ms * 1_000_000, options.linears))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser.add_argument, EnergyOptions)
    options = read_options(EnergyOptions, parser.parse_args())
    try:
        with naming_options(EnergyOptions):
            points = points_of(options, options.remote, least_tokens=1)
            if options.baseline is not None:
                find_baseline(Path(options.baseline))
            require_place("out", options.out)
            host = Host.find()
            host.check(points)
    except ProblemError as error:
        parser.error(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    path, head, records = result_path(options.out, "energy"), heading(options.baseline), list[dict[str, Any]]()

    def show(point: Point, record: dict[str, Any]) -> None:
        records.append({"name": point.name, **record})
        write(path, head, records)
        print(line_of(records[-1]), flush=True)

    run_points(partial(work, options=options, host=host), points, LIMIT_S, show, options.watchdog_ms / 1e3)
    print(f"wrote {path}")
    sys.exit(any("error" in one for one in records))


if __name__ == "__main__":
    main()
