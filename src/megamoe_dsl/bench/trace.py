"""Where the time of a launch goes: points with traced kernels, of the fused layer and of its two halves."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..artifact.store import ArtifactStore
from ..inspect.spans import spans_of, summarize, write_perfetto
from ..kernels.moe.config import MegaMoeConfig
from ..runtime.buffers import Inputs
from ..runtime.ep.layer import EpMoE
from ..runtime.symmetric_memory import SymmetricBuffer
from .ep import Variant, swiglu, without_clamp
from .point import SEED, Layer, Point
from .timing import run_earlier_batches, synchronize

TRACED = (Variant("dispatch trace=on"), Variant("combine trace=on"))
LAUNCHES = 8
"""One after another; the stamps are the last one's, when the ranks run in step."""


def traced(stamps: torch.Tensor, out: Path, name: str) -> dict[str, Any]:
    """What a record says of a launch's stamps; writes the file for Perfetto."""
    spans = list(spans_of(stamps))
    write_perfetto(out / f"trace-{name.replace(' ', '-').replace('=', '')}.json", spans)
    return {"trace": summarize(spans), "launch_us": max((one.end for one in spans), default=0.0)}


def trace_point(
    point: Point, layer: Layer, store: ArtifactStore, configs: list[MegaMoeConfig], watchdog_ns: int, out: Path
) -> dict[str, Any]:
    """Traces the first of the kernels; all ranks together.  Rank 0's record is of its own launch, and a Perfetto file goes to `out`."""
    problem = point.problem
    symmetric = SymmetricBuffer.allocate(problem, configs[0].arch)
    kernel = layer.bind(store, configs[0], symmetric, watchdog_ns)
    y = torch.empty(point.tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
    run_earlier_batches(point.draw, lambda batch: kernel.buffers.load(Inputs(*batch)), [partial(kernel, y)])
    kernel.buffers.load(Inputs(*point.draw(SEED)))
    synchronize()
    for _ in range(LAUNCHES):
        kernel(y)
    kernel.synchronize()
    record: dict[str, Any] = {"point": asdict(point), "made_by": store.origin(configs[0])}
    if dist.get_rank() == 0:
        record |= traced(kernel.buffers.trace, out, point.name)
    symmetric.close()
    return record


def trace_ep_point(point: Point, layer: Layer, store: ArtifactStore, watchdog_ns: int, out: Path) -> dict[str, Any]:
    """Traces both kernels; all ranks together.  Rank 0's record is of its own launches, and a file of each for Perfetto goes to `out`."""
    problem = without_clamp(point.problem)
    traces = {"trace": True}
    options: dict[str, Any] = {"store": store, "watchdog_ns": watchdog_ns, "dispatch": traces, "combine": traces}
    ep = EpMoE(problem, layer.weights_for(point.recipe), activation=swiglu, **options)
    y = torch.empty(point.tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
    ep.route(Inputs(*point.draw(SEED)))
    synchronize()
    for _ in range(LAUNCHES):
        ep.launch_dispatch()
    ep.activate()
    synchronize()
    for _ in range(LAUNCHES):
        ep.launch_combine(y)
    ep.synchronize()
    record: dict[str, Any] = {"point": asdict(point), "traced": {}}
    if dist.get_rank() == 0:
        for half, config in (("dispatch", ep.dispatch_config), ("combine", ep.combine_config)):
            record["traced"][half] = traced(ep.memory.trace_of(config), out, f"{half} {point.name}")
    ep.symmetric.close()
    return record
