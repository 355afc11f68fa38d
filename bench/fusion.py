"""What fusion gains at a point: the layer in one launch and in one launch per stage, on the same buffers, in turns; time, and energy."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from difference import relative_difference
from energy_per_call import joules_of
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import FP8, SEED, Layer, Point
from megamoe_dsl.bench.timing import launches_of, over_ranks, run_earlier_batches, synchronize, time_back_to_back, time_graphs
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.rank_kernel import RankKernel
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from torch_layer import TorchLayer
from unfused import UNFUSED, bind_stages, compare_kernels, mixed_batches

FUSED = "fused"
TORCH = "torch"


def fusion_point(
    point: Point, layer: Layer, store: ArtifactStore, config: Sm90Config, watchdog_ns: int, launches: int, far: bool = False
) -> dict[str, Any]:
    """Compares `launches` launches, then times; all ranks together.  The record is complete on rank 0; with `far` it has the layer in torch
    alone too."""
    problem, tokens = point.problem, point.tokens
    symmetric = SymmetricBuffer.allocate(problem, config.arch, pool_rows=config.pool_rows)
    fused = layer.bind(store, config, symmetric, watchdog_ns)
    unfused = bind_stages(layer, store, config, symmetric, watchdog_ns)
    agreement = compare_kernels(fused, unfused, mixed_batches(problem, tokens, point.remote), launches)
    ys = {name: torch.empty(tokens, problem.hidden, dtype=torch.bfloat16, device="cuda") for name in (FUSED, UNFUSED)}
    candidates: dict[str, Callable[[], None]] = {FUSED: partial(fused, ys[FUSED]), UNFUSED: partial(unfused, ys[UNFUSED])}
    run_earlier_batches(point.draw, lambda batch: fused.buffers.load(Inputs(*batch)), candidates.values())
    fused.buffers.load(Inputs(*point.draw(SEED)))
    synchronize()
    for run in candidates.values():
        run()
    times, graphs = time_back_to_back(candidates, launches_of(tokens)), time_graphs(candidates)
    record: dict[str, Any] = {
        "point": asdict(point),
        "config": {"block_m": config.block_m, "cluster": config.cluster, "num_sms": config.num_sms},
        "agreement": agreement.record(),
        "results_bytes": unfused.buffers.results.numel(),
        "us": {name: asdict(one) for name, one in times.items()},
        "graph_us": {name: asdict(one) for name, one in graphs.items()},
        "gain": graphs[UNFUSED].median / graphs[FUSED].median,
        "stages_us": time_stages(unfused, ys[UNFUSED], launches_of(tokens)),
        "joules": joules_of(candidates, {name: one.median for name, one in graphs.items()}),
    }
    if far:
        record[TORCH] = time_torch(point, layer, ys[FUSED])
    fused.synchronize()
    candidates.clear()
    symmetric.close()
    return record


def time_torch(point: Point, layer: Layer, y: torch.Tensor) -> dict[str, Any]:
    """The layer in torch alone: times of calls in a row, and how far its result is from `y`, relative in the 2-norm."""
    own = TorchLayer(point.problem, layer.weights_for(FP8))
    own.load(point.draw(SEED))
    result = torch.empty_like(y)
    own(result)
    times = time_back_to_back({TORCH: partial(own, result)}, launches_of(point.tokens))
    return {"us": asdict(times[TORCH]), "difference": relative_difference(result, y)}


def time_stages(unfused: RankKernel, y: torch.Tensor, calls: int) -> dict[str, float]:
    """Microseconds of each stage, by an event before and after it: the median over calls, of the slowest rank.  A wait for other ranks
    counts to the stage that waits."""
    names = [stage.artifact.kernel.name for stage in unfused.kernels]
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(len(names) + 1)] for _ in range(calls)]
    synchronize()
    unfused(y)
    for row in events:
        row[0].record()
        for stage, event in zip(unfused.kernels, row[1:], strict=True):
            stage.launch()  # into the y of the call before
            event.record()
    torch.cuda.synchronize()
    found = {}
    for index, name in enumerate(names):
        mine = [row[index].elapsed_time(row[index + 1]) * 1e3 for row in events]
        found[name] = over_ranks([statistics.median(mine)]).median
    return found


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    fused, unfused = (record["graph_us"][name]["median"] for name in (FUSED, UNFUSED))
    joules, agreement = record["joules"], record["agreement"]
    energy = "" if joules is None else f"; {joules[FUSED]:.3f} J, unfused {joules[UNFUSED]:.3f} J"
    stages = ", ".join(f"{name.removeprefix('moe_')} {us:.0f}" for name, us in record["stages_us"].items())
    equal = f"{agreement['elements'] - agreement['unequal']:,} of {agreement['elements']:,} equal in {agreement['launches']} launches"
    far = f"; torch {record[TORCH]['us']['median']:.0f} us, {record[TORCH]['difference']:.3f} away" if TORCH in record else ""
    return f"{record['name']}: {fused:.1f} us, unfused {unfused:.1f} us, {record['gain']:.2f} x ({stages}){energy}; {equal}{far}"
