"""Time and energy of a point: the fused kernel and the baseline, in turns, long enough for the GPU's power to settle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from ..artifact.store import ArtifactStore
from ..kernels.mega_moe.config import MegaMoeConfig
from ..runtime.buffers import Inputs
from ..runtime.symmetric_memory import SymmetricBuffer
from .energy_per_call import joules_of
from .history import run_earlier_batches
from .point import BASELINE, SEED, Layer, Point
from .timing import Times, synchronize, time_graphs
from .variant import variant_name

TURNS = 3
OURS = "ours"


def energy_point(point: Point, layer: Layer, store: ArtifactStore, config: MegaMoeConfig, watchdog_ns: int) -> dict[str, Any]:
    """All ranks together; the record is complete on rank 0.  `joules` are of all ranks, per call: the median, least and most of the turns;
    None where NVML does not say."""
    problem, inputs = point.problem, point.draw(SEED)
    symmetric = SymmetricBuffer.allocate(problem, config.arch)
    kernel = layer.bind(store, config, symmetric, watchdog_ns)
    y = torch.empty(point.tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
    candidates: dict[str, Callable[[], None]] = {OURS: partial(kernel, y)}
    run_earlier_batches(point.draw, lambda batch: kernel.buffers.load(Inputs(*batch)), candidates.values())
    kernel.buffers.load(Inputs(*inputs))
    if layer.baseline is not None:
        layer.baseline.allocate(problem)
        candidates[BASELINE] = partial(layer.baseline, torch.empty_like(y))
        run_earlier_batches(point.draw, layer.baseline.load, [candidates[BASELINE]])
        layer.baseline.load(inputs)
    synchronize()
    graphs = time_graphs(candidates)
    turns = [joules_of(candidates, {name: one.median for name, one in graphs.items()}) for _ in range(TURNS)]
    known = [one for one in turns if one is not None]
    joules = {name: asdict(Times.of([one[name] for one in known])) for name in candidates} if known else None
    kernel.synchronize()
    if layer.baseline is not None:
        layer.baseline.free()
    candidates.clear()
    symmetric.close()
    more = {"baseline_error": layer.baseline_error} if layer.baseline_error else {}
    graph_us = {name: asdict(one) for name, one in graphs.items()}
    return {"point": asdict(point), "variant": variant_name(config), "graph_us": graph_us, "joules": joules, **more}


def line_of(record: dict[str, Any]) -> str:
    """A record in a line: us per call, joules of a rank, and the watts that they make."""
    if "error" in record:
        return f"{record['name']}: FAILED: {record['error']}"
    ranks, parts = record["point"]["ranks"], []
    for name, times in record["graph_us"].items():
        joules = None if record["joules"] is None else record["joules"][name]["median"] / ranks
        energy = "" if joules is None else f", {joules:.3f} J, {joules / times['median'] * 1e6:.0f} W"
        parts.append(f"{name} {times['median']:.1f} us{energy}")
    return f"{record['name']}: {'; '.join(parts)}"
