"""Times the kernels of several folders in turns, in one process on one GPU: what a change to the kernel is worth.

    python bench/compile_artifacts.py before --preset flash --tokens 512,2048 --ranks 1 --experts-per-rank 32
    (change the kernel, and compile into another folder)
    python bench/compare_kernels.py --points flash:512,flash:2048 before after

Every kernel of every folder that fits a point is bound to the same buffers, so that changes of layouts cannot be compared.  What computes
something else than the reference is timed as well, and marked WRONG.  `--joules 3` measures energy after that, a second of launches of each
kernel in three turns: at its power cap a GPU's speed is that.  With `--recipe fp8xmxfp4` kernels of fp8xfp8 take part as well, on
the same tokens and weights.  Torch and cuda-bindings are enough here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from energy_per_call import joules_in_turns
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.check import Expectation, sample_rows
from megamoe_dsl.bench.point import FP8, SAMPLES_PER_RANK, SEED, CurrentLayer, Layer, Point, check_launch
from megamoe_dsl.bench.session import POINT_LIMIT_S
from megamoe_dsl.bench.timing import BATCHES, REPEATS, launches_of, run_earlier_batches, time_back_to_back
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.kernels.moe.roofline import bound_of
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from script_options import at_least
from script_points import record_points, shares_of

WARM_UPS = 3


def kernels_of(point: Point, folders: Sequence[Path]) -> list[tuple[Path, Sm90Config]]:
    """Untraced kernels for a point, folder by folder, of its recipe or FP8.  Raises LookupError when a folder has none or the name of
    another."""
    if len({one.name for one in folders}) < len(folders):
        raise LookupError(f"two folders have one name: {', '.join(one.name for one in folders)}")
    problems = dict.fromkeys([point.problem, replace(point.problem, recipe=FP8)])
    found = [(one, config) for one in folders for p in problems for config in ArtifactStore(one).configs(Sm90Config, p) if not config.trace]
    for folder in folders:
        if folder not in {one for one, _ in found}:
            raise LookupError(f"{folder} has no kernel for {point.name}")
    return found


@dataclass(frozen=True)
class Settings:
    """Options of a comparison: see `main`."""

    folders: list[Path]
    repeats: int = REPEATS
    earlier_batches: int = BATCHES
    watchdog_ns: int = 5 * 10**9
    energy_turns: int = 0


def compare(point: Point, layer: Layer, settings: Settings) -> dict[str, Any]:
    """Checks and times all kernels for a point: `kernels`, the fastest first."""
    problem, tokens = point.problem, point.tokens
    symmetric = SymmetricBuffer.allocate(problem, SM90)
    inputs = point.draw(SEED)
    expectation = Expectation(problem, inputs, sample_rows(tokens, SAMPLES_PER_RANK), layer.all_weights)
    least = bound_of(problem, point.load, torch.cuda.get_device_name())
    found = {
        f"{folder.name} {config.problem.recipe} {variant_name(config)}": (folder, config)
        for folder, config in kernels_of(point, settings.folders)
    }
    kernels = {name: layer.bind(ArtifactStore(folder), config, symmetric, settings.watchdog_ns) for name, (folder, config) in found.items()}
    outputs = {name: torch.empty(tokens, problem.hidden, dtype=torch.bfloat16, device=inputs.x.device) for name in kernels}
    launches: dict[str, Callable[[], None]] = {name: partial(kernel, outputs[name]) for name, kernel in kernels.items()}
    buffers = next(iter(kernels.values())).buffers
    run_earlier_batches(point.draw, lambda batch: buffers.load(Inputs(*batch)), launches.values(), settings.earlier_batches)
    buffers.load(Inputs(*inputs))
    entries: dict[str, dict[str, Any]] = {}
    for name, kernel in kernels.items():
        folder, config = found[name]
        check = check_launch(kernel, outputs[name], expectation)
        entries[name] = {"folder": folder.name, "recipe": config.problem.recipe, "variant": variant_name(config), "check": check}
    for _ in range(WARM_UPS):
        for launch in launches.values():
            launch()
    for name, times in time_back_to_back(launches, launches_of(tokens), settings.repeats).items():
        entries[name] |= {"us": asdict(times), "tflops": least.flop / times.median / 1e6}
    medians = {name: one["us"]["median"] for name, one in entries.items()}
    for name, joules in (joules_in_turns(launches, medians, settings.energy_turns) or {}).items():
        entries[name] |= {"joules": asdict(joules)}
    for kernel in kernels.values():
        kernel.synchronize()
    launches.clear()
    symmetric.close()
    fastest_first = sorted(entries.values(), key=lambda one: one["us"]["median"])
    facts = {"bound_us": least.bound_us, "bound_by": least.bound_by, "earlier_batches": settings.earlier_batches}
    return {"point": asdict(point), "name": point.name, **facts, "kernels": fastest_first}


def work(rank: int, points: list[Point], report: Callable[[int, dict[str, Any]], None], *, settings: Settings) -> None:
    """The worker process; points of a shape that follow one another share their weights."""
    layers = CurrentLayer(Layer)
    for index, point in enumerate(points):
        report(index, compare(point, layers.of(point), settings))


def table(record: dict[str, Any], baseline: str) -> str:
    """A record as text; gains are over the fastest kernel of the folder `baseline`."""
    theirs = [one for one in record["kernels"] if one["folder"] == baseline]
    before = min(one["us"]["median"] for one in [one for one in theirs if one["check"]["passed"]] or theirs)
    lines = [
        f"{record['name']}: at least {record['bound_us']:.0f} us by {record['bound_by']}",
        f"{'us':>9} {'low':>9} {'high':>9} {'TFLOPS':>7} {'gain':>7}  check                   kernel",
    ]
    for one in record["kernels"]:
        us, check = one["us"], one["check"]
        verdict = f"{'ok' if check['passed'] else 'WRONG'}, {check['same_bits']:.4f} same bits"
        figures = f"{us['median']:9.1f} {us['low']:9.1f} {us['high']:9.1f} {one['tflops']:7.0f} {before / us['median'] - 1:+7.1%}"
        joules = one.get("joules")
        energy = f", {joules['median']:.4f} ({joules['low']:.4f} to {joules['high']:.4f}) J" if joules else ""
        lines.append(f"{figures}  {verdict:23} {one['folder']} {one['recipe']} {one['variant']}{energy}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the kernels of several folders in turns on one GPU.")
    parser.add_argument("--points", type=shares_of, default="flash:512,flash:2048,flash:8192", help="PRESET:TOKENS, separated by commas")
    parser.add_argument("--recipe", choices=Sm90Config.recipes, default=FP8, help="number formats")
    parser.add_argument("--repeats", type=at_least(1), default=REPEATS, help="turns of every kernel")
    parser.add_argument(
        "--earlier-batches",
        type=at_least(0),
        default=BATCHES,
        help="with other routings, whose tokens then lie in a tile's rows; 0 leaves zeros there",
    )
    parser.add_argument("--joules", type=at_least(0), default=0, metavar="TURNS", help="turns in which a second of launches is measured")
    parser.add_argument("--watchdog-ms", type=at_least(1), default=5000, help="limit of every wait in a kernel")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    parser.add_argument("folders", type=Path, nargs="+", help="compiled kernels; gains are over the first folder's")
    given = parser.parse_args()
    given.points = [replace(point, recipe=given.recipe) for point in given.points]
    try:
        for point in given.points:
            kernels_of(point, given.folders)
    except LookupError as error:
        parser.error(str(error))
    settings = Settings(given.folders, given.repeats, given.earlier_batches, given.watchdog_ms * 1_000_000, given.joules)
    job, shown = partial(work, settings=settings), partial(table, baseline=given.folders[0].name)
    records = record_points(job, given.points, given.out, "compare_kernels", shown, POINT_LIMIT_S, given.watchdog_ms / 1e3)
    sys.exit(any("error" in one for one in records))


if __name__ == "__main__":
    main()
