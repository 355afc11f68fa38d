"""Time and energy per call of the fused kernel and of the baseline, in turns, in the same process.

    python bench/energy.py --artifacts FOLDER --ranks 2 --remote 0.875 --preset flash --experts-per-rank 32 --baseline SITE

FOLDER has the kernels (bench/compile_artifacts.py makes them where the DSL is, with --unfused those of --linears).  Energy is what
NVML says each GPU has consumed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baselines import find_baseline
from baselines.baseline import BASELINE
from baselines.layer import LayerBeside, baseline_option
from energy_per_call import joules_in_turns
from megamoe_dsl.artifact.cache import require_place
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import SEED, CurrentLayer, Point, points_of
from megamoe_dsl.bench.session import configs_of
from megamoe_dsl.bench.timing import run_earlier_batches, synchronize, time_graphs
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.options.option import option
from megamoe_dsl.options.points import RunOptions
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.rank_kernel import RankKernel
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from script_options import add_options, naming_options, read_options
from script_points import record_points
from unfused import bind_stages

TURNS = 3
LIMIT_S = 60.0
OURS = "ours"


def energy_point(
    point: Point, layer: LayerBeside, store: ArtifactStore, configs: Sequence[MegaMoeConfig], watchdog_ns: int, linears: bool = False
) -> dict[str, Any]:
    """All ranks together; the record is complete on rank 0.  The first kernel is `OURS`, others have the names of their variants; with
    `linears` the record has those of the first one's tile alone."""
    problem, inputs = point.problem, point.draw(SEED)
    symmetric = SymmetricBuffer.allocate(problem, configs[0].arch, **point.pool)
    kernels = {name: layer.bind(store, config, symmetric, watchdog_ns) for name, config in named(configs).items()}
    buffers = kernels[OURS].buffers
    y = torch.empty(point.tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
    candidates: dict[str, Callable[[], None]] = {name: partial(kernel, y) for name, kernel in kernels.items()}
    run_earlier_batches(point.draw, lambda batch: buffers.load(Inputs(*batch)), candidates.values())
    buffers.load(Inputs(*inputs))
    alone = {}
    if linears:
        unfused = bind_stages(layer, store, configs[0], symmetric, watchdog_ns)
        alone = {"linears": energy_of_linears(unfused, y)}
    if layer.baseline is not None:
        layer.baseline.allocate(problem)
        candidates[BASELINE] = partial(layer.baseline, torch.empty_like(y))
        run_earlier_batches(point.draw, layer.baseline.load, [candidates[BASELINE]])
        layer.baseline.load(inputs)
    found = measure(candidates, TURNS)
    kernels[OURS].synchronize()
    if layer.baseline is not None:
        layer.baseline.free()
    candidates.clear()
    symmetric.close()
    more = {"baseline_error": layer.baseline_error} if layer.baseline_error else {}
    return {"point": asdict(point), "variant": variant_name(configs[0]), **found, **alone, **more}


def named(configs: Sequence[MegaMoeConfig]) -> dict[str, MegaMoeConfig]:
    """Kernels as a record names them."""
    return {OURS if config is configs[0] else variant_name(config): config for config in configs}


def measure(candidates: Mapping[str, Callable[[], None]], turns: int) -> dict[str, Any]:
    """Microseconds per call in a graph, and joules of all ranks per call: the median, least and most of the turns; None where NVML does
    not say."""
    synchronize()
    graphs = time_graphs(candidates)
    us = {name: one.median for name, one in graphs.items()}
    joules = joules_in_turns(candidates, us, turns)
    found = None if joules is None else {name: asdict(one) for name, one in joules.items()}
    return {"graph_us": {name: asdict(one) for name, one in graphs.items()}, "joules": found}


def energy_of_linears(unfused: RankKernel, y: torch.Tensor) -> dict[str, Any]:
    """Each linear again and again on the tokens that the stages before it have left: what its multiplications and its reading of weights
    take without dispatch, exchange and combine.  Sums leave as BF16, Linear1's too."""
    counter = unfused.buffers.view("tile_counter")
    found: dict[str, Any] = {}

    def again(launch: Callable[[], None]) -> None:
        counter.zero_()
        launch()

    unfused(y)  # into which its stages compute from now on
    for stage in unfused.kernels:
        if stage.artifact.config.linear:
            found[stage.artifact.kernel.name] = measure({OURS: partial(again, stage.launch)}, TURNS)
            counter.zero_()
        stage.launch()
    synchronize()
    return found


def line_of(record: dict[str, Any]) -> str:
    """A record in a line: us per call, joules of a rank, and the watts that they make."""
    ranks = record["point"]["ranks"]
    parts = parts_of(record, ranks)
    for name, found in record.get("linears", {}).items():
        parts += [part.replace(OURS, name) for part in parts_of(found, ranks)]
    return f"{record['name']}: {'; '.join(parts)}"


def parts_of(found: dict[str, Any], ranks: int) -> list[str]:
    """What was measured of each candidate."""
    parts = []
    for name, times in found["graph_us"].items():
        joules = None if found["joules"] is None else found["joules"][name]["median"] / ranks
        energy = "" if joules is None else f", {joules:.3f} J, {joules / times['median'] * 1e6:.0f} W"
        parts.append(f"{name} {times['median']:.1f} us{energy}")
    return parts


@dataclass(frozen=True)
class EnergyOptions(RunOptions):
    """Of this script."""

    variants: bool = option(False, "Take every kernel in the folder that fits a point.")
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
    job, watchdog_s = partial(work, options=options, host=host), options.watchdog_ms / 1e3
    records = record_points(job, points, options.out, "energy", line_of, LIMIT_S, watchdog_s, options.baseline)
    sys.exit(any("error" in one for one in records))


if __name__ == "__main__":
    main()
