"""How long a call takes on a GPU by the performance model, and what limits it; needs no GPU.

python bench/predict.py --preset flash --tokens 8,64,512 --gpu B200
python bench/predict.py --preset pro --tokens 512 --gpu H200 --compare                   other tiles, leads and rings
python bench/predict.py --preset flash --tokens 64 --trace launch.json --svg launch.svg
python bench/predict.py --preset deepseek-v3 --nodes 2,4,8 --group-limit 4

The model's constants were fitted to measured or published times; docs/explanation/predict.md lists its errors. Times that differ by less
than 5 % count as equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from megamoe_dsl.arch import Gpu
from megamoe_dsl.bench.point import Point, points_of
from megamoe_dsl.bench.variant import neighbors, variant_fields, variant_name
from megamoe_dsl.cli.output_file import require_writable_files, write_whole
from megamoe_dsl.cli.tables import ruled, wide_console
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.registry import default_recipe, find_kernel
from megamoe_dsl.options.option import leave_out, numbers, option
from megamoe_dsl.options.points import FORMATS, PROBLEM, TOKENS, PointOptions
from megamoe_dsl.pictures import to_svg
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.target import Target
from prediction.calibration import CALIBRATED, calibration_of, find_gpu
from prediction.launch import RankLoad
from prediction.nodes import GROUPS, NodePrediction
from prediction.prediction import BUSY, Launched, Subject, prefers
from prediction.timeline import draw, perfetto
from script_options import add_options, naming_options, read_options


@dataclass(frozen=True)
class PredictOptions(PointOptions):
    """Points, a GPU, and what to print or write."""

    tokens: str = option("8,64,512,2048", TOKENS, PROBLEM)
    recipe: str = option("", f"Number formats: {FORMATS}.", PROBLEM, "the GPU's first")
    gpu: str = option("H200", f"{' or '.join(CALIBRATED)}.")
    nodes: str | None = option(None, "Nodes of --ranks GPUs that a network joins, as in 2,4,8.")
    network: int = option(400, "Gb/s of each GPU's network card, in each direction.")
    group_limit: int | None = option(None, f"Groups, of {GROUPS}, that a token's experts belong to; all by default.")
    compare: bool = option(False, "Compare other choices of the configuration.")
    trace: Path | None = option(None, "Write the launch of one point for Perfetto.")
    svg: Path | None = option(None, "Draw the launches.")
    json: bool = option(False, "Print JSON and nothing else.")


def predict(given: PredictOptions) -> None:
    """Raises `ProblemError` and `ConfigError`."""
    require_writable_files({"--trace": given.trace, "--svg": given.svg})
    gpu, console = find_gpu(given.gpu), wide_console()
    points = points_of(replace(given, recipe=given.recipe or default_recipe(find_kernel("mega_moe"), gpu.arch)), least_tokens=1)
    if given.nodes is not None:
        leave_out(given, ("compare", "trace", "svg", "json"), "--nodes")
        print_nodes(console, points, numbers("nodes", given.nodes, 1), given, gpu)
        return
    leave_out(given, ("network", "group_limit"), "no --nodes")
    target = Target(gpu.arch, gpu.num_sms, gpu.name)
    configs = [(one, find_kernel("mega_moe").choose(one.problem, target, one.tokens, **one.pool)) for one in points]
    if given.compare:
        leave_out(given, ("trace", "svg", "json"), "--compare")
        for point, config in configs:
            print_choices(console, point, config, target)
        return
    if given.trace is not None and len(points) > 1:
        raise ProblemError("tokens", given.tokens, "of one point with --trace")
    found = [(point, config, launched(point, config, gpu.name)) for point, config in configs]
    if given.json:
        print(json.dumps({"gpu": gpu.name, "points": [as_dict(*one) for one in found]}, indent=2))
    else:
        print_launches(console, found, gpu)
    launches = [one for _, _, one in found]
    if given.trace is not None:
        write_whole(given.trace, perfetto(launches[0]))
    if given.svg is not None:
        write_whole(given.svg, to_svg(draw(launches, gpu.name)))


def launched(point: Point, config: MegaMoeConfig, gpu: str) -> Launched:
    """The predicted launch of a configuration on a point's slowest rank."""
    return Subject.of(config, RankLoad.uniform(point.problem, point.tokens)).predict(calibration_of(gpu))


def as_dict(point: Point, config: MegaMoeConfig, found: Launched) -> dict[str, object]:
    """A point of --json."""
    figures = {"us": found.us, "clock_ghz": found.clock, "watts": found.watts, "busy": found.busy, "gains": found.gains}
    return {"name": point.name, "tokens": point.tokens, **figures, "config": variant_fields(config)}


def print_launches(console: Console, found: Sequence[tuple[Point, MegaMoeConfig, Launched]], gpu: Gpu) -> None:
    """A line per point: how busy the GPU's parts are, and which of them it pays to improve."""
    rows = [
        (
            *(point.name, config.block_m, f"{one.us:.1f}", f"{one.clock:.2f}", f"{one.watts:.0f}"),
            *(f"{share:.0%}" for share in one.busy.values()),
            ", ".join(f"{resource} {share:.1%}" for resource, share in one.gains.items()),
        )
        for point, config, one in found
    ]
    headings = ("point", "tile", "us", "GHz", "W", *BUSY, "saved by a resource that is a fifth better")
    console.print(ruled(f"Predicted for {gpu.name}", headings, rows))


def print_nodes(console: Console, points: Sequence[Point], nodes: Sequence[int], given: PredictOptions, gpu: Gpu) -> None:
    """A line per number of nodes and point: the call, what the network and the launches of it take, and which is the limit."""
    rows = []
    for count in nodes:
        for point in points:
            one = NodePrediction.of(point.problem, point.tokens, count, given.network, gpu, given.group_limit)
            times = (f"{us:.0f}" for us in (one.us, one.network_us, one.launch_us))
            shares = " ".join(f"{row:.2f}" for row in (one.spread.away_nodes, one.spread.away_ranks, one.spread.away_experts))
            rows.append((count, point.name, one.chunks, *times, f"{one.sent / 1e6:.1f}", one.limit, f"{one.spread.nodes:.2f}", shares))
    launch = ("nodes", "point", "chunks", "us", "network us", "launches us", "MB sent", "limit")
    console.print(ruled(f"Predicted for {gpu.name}, rows to other nodes", (*launch, "nodes per token", "rows, of ranks, of experts"), rows))


def print_choices(console: Console, point: Point, config: MegaMoeConfig, target: Target) -> None:
    """A line for a configuration and for each of its neighbors, the fastest first: its time, and how much longer than the fastest it
    takes where that is significant."""
    times = {one: launched(point, one, str(target.gpu)).us for one in (config, *neighbors(config, point.tokens, target))}
    least, rows = min(times.values()), []
    for one, us in sorted(times.items(), key=lambda item: item[1]):
        said = f"{us / least - 1:+.1%}" if prefers(least, us) else "no preference"
        rows.append((variant_name(one), f"{us:.1f}", f"chosen, {said}" if one == config else said))
    console.print(ruled(f"{point.name}, predicted for {target.gpu}", ("configuration", "us", "to the fastest"), rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser.add_argument, PredictOptions)
    try:
        with naming_options(PredictOptions):
            predict(read_options(PredictOptions, parser.parse_args()))
    except (ProblemError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
