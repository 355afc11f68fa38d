"""Times the kernels of a folder for one point in turns, each on a symmetric buffer of its own: with pools of several sizes, or with results
that travel in several formats.  Those of one format must give the same bits.

    python bench/compile_artifacts.py FOLDER --preset flash --experts-per-rank 32 --tokens 2048 --ranks 2 --pool-rows 0
    python bench/compile_artifacts.py FOLDER --preset flash --experts-per-rank 32 --tokens 2048 --ranks 2 --pool-rows 8192
    python bench/compile_artifacts.py FOLDER --preset flash --experts-per-rank 32 --tokens 2048 --ranks 2 --combine e4m3
    python bench/compare_buffers.py --preset flash --experts-per-rank 32 --tokens 2048 --ranks 2 --remote 0.875 --artifacts FOLDER

Every kernel of the point's problem takes part, whatever its pool and its format of results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from difference import relative_difference
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.check import Expectation, sample_rows
from megamoe_dsl.bench.point import SAMPLES_PER_RANK, SEED, CurrentLayer, Layer, Point, check_launch, points_of
from megamoe_dsl.bench.session import POINT_LIMIT_S
from megamoe_dsl.bench.timing import launches_of, run_earlier_batches, synchronize, time_back_to_back
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.kernels.moe.layouts.symmetric import pool_tokens
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.options.option import option
from megamoe_dsl.options.points import RunOptions
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.recipe import BF16
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from script_options import add_options, naming_options, read_options
from script_points import record_points
from unfused import bits_of


@dataclass(frozen=True)
class BufferOptions(RunOptions):
    """Of this script."""

    launches: int = option(0, "Compare the bits of so many launches in a row, too.")


def kernels_of(point: Point, store: ArtifactStore) -> list[Sm90Config]:
    """Untraced kernels for a point: first those whose results travel as BF16, and of each format those with the most pool rows."""
    found = [c for c in store.configs(Sm90Config) if type(c) is Sm90Config and usual(c.problem) == usual(point.problem) and not c.trace]
    return sorted(found, key=lambda config: (config.problem.combine != BF16, -pool_of(config)))


def pool_of(config: Sm90Config) -> int:
    """Rows of its token pool."""
    return pool_tokens(config.problem, config.pool_rows)


def usual(problem: Problem) -> Problem:
    """The same layer with the usual results."""
    return replace(problem, combine=BF16)


def compare(point: Point, layer: Layer, options: BufferOptions) -> dict[str, Any]:
    """Checks and times all kernels for a point; all ranks together.  The record is complete on rank 0."""
    store, inputs = ArtifactStore(options.artifacts), point.draw(SEED)
    configs = kernels_of(point, store)
    kinds = dict.fromkeys((config.problem, config.pool_rows) for config in configs)
    buffers = {(problem, rows): SymmetricBuffer.allocate(problem, SM90, pool_rows=rows) for problem, rows in kinds}
    names = {f"{config.problem.combine} rows={pool_of(config)} {variant_name(config)}": config for config in configs}
    limit = options.watchdog_ms * 1_000_000
    kernels = {name: layer.bind(store, config, buffers[config.problem, config.pool_rows], limit) for name, config in names.items()}
    outputs = {name: torch.empty(point.tokens, point.problem.hidden, dtype=torch.bfloat16, device="cuda") for name in kernels}
    runs: dict[str, Callable[[], None]] = {name: partial(kernel, outputs[name]) for name, kernel in kernels.items()}

    def load(batch: Any) -> None:
        for kernel in kernels.values():
            kernel.buffers.load(Inputs(*batch))

    run_earlier_batches(point.draw, load, runs.values())
    load(inputs)
    rows, layers = sample_rows(point.tokens, SAMPLES_PER_RANK), {config.problem.combine: config.problem for config in configs}
    expectations = {combine: Expectation(problem, inputs, rows, layer.all_weights) for combine, problem in layers.items()}
    entries: dict[str, dict[str, Any]] = {}
    firsts: dict[str, torch.Tensor] = {}
    for name, kernel in kernels.items():
        problem = names[name].problem
        check = check_launch(kernel, outputs[name], expectations[problem.combine])
        entry = {"check": check, "combine": problem.combine, "pool_rows": pool_of(names[name])}
        entries[name] = entry | {"variant": variant_name(names[name]), "symmetric_bytes": buffers[problem, names[name].pool_rows].num_bytes}
        firsts.setdefault(problem.combine, outputs[name].clone())
    usual_y = next(iter(firsts.values()))
    synchronize()
    for name, kernel in kernels.items():
        other, first = torch.zeros((), dtype=torch.int64, device="cuda"), firsts[names[name].problem.combine]
        for _ in range(1 + options.launches):
            other += (bits_of(kernel, outputs[name]) != first.view(torch.int16)).sum()
        dist.all_reduce(other)
        entries[name] |= {"other_bits": int(other), "difference": relative_difference(outputs[name], usual_y)}
    for name, times in time_back_to_back(runs, launches_of(point.tokens)).items():
        entries[name]["us"] = asdict(times)
    for kernel in kernels.values():
        kernel.synchronize()
    runs.clear()
    for buffer in buffers.values():
        buffer.close()
    return {"point": asdict(point), "name": point.name, "launches": 1 + options.launches, "kernels": list(entries.values())}


def work(rank: int, points: list[Point], report: Callable[[int, dict[str, Any]], None], *, options: BufferOptions) -> None:
    """A worker process; points of a shape that follow one another share their weights."""
    layers = CurrentLayer(Layer)
    for index, point in enumerate(points):
        report(index, compare(point, layers.of(point), options))


def table(record: dict[str, Any]) -> str:
    """A record as text; gains are over the first kernel."""
    heads = f"{'us':>9} {'low':>9} {'high':>9} {'gain':>7} {'MiB':>7} {'rows':>7} {'combine':>8} {'differs':>8}"
    lines = [record["name"], f"{heads}  check        kernel"]
    first = record["kernels"][0]["us"]["median"]
    for one in record["kernels"]:
        us, good = one["us"], one["check"]["passed"] and not one["other_bits"]
        figures = f"{us['median']:9.1f} {us['low']:9.1f} {us['high']:9.1f} {first / us['median'] - 1:+7.1%}"
        verdict = "same bits" if good else f"WRONG {one['other_bits']}"
        buffer = f"{one['symmetric_bytes'] / 2**20:7.0f} {one['pool_rows']:7} {one['combine']:>8} {one['difference']:8.4f}"
        lines.append(f"{figures} {buffer}  {verdict:12} {one['variant']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times kernels on buffers of their own in turns.")
    add_options(parser.add_argument, BufferOptions)
    options = read_options(BufferOptions, parser.parse_args())
    try:
        with naming_options(BufferOptions):
            points = points_of(options, options.remote)
    except ProblemError as error:
        parser.error(str(error))
    job, watchdog_s = partial(work, options=options), options.watchdog_ms / 1e3
    records = record_points(job, points, options.out, "compare_buffers", table, POINT_LIMIT_S, watchdog_s)
    sys.exit(any("error" in one for one in records))


if __name__ == "__main__":
    main()
