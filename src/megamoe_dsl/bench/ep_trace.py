"""Where the time of the two halves of a layer goes: stamps of traced kernels, summed by role and activity, and as files for Perfetto."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..artifact.store import ArtifactStore
from ..runtime.buffers import Inputs
from ..runtime.ep.layer import EpMoE
from .ep import Variant, as_of_many, swiglu, without_clamp
from .point import SEED, Layer, Point
from .timing import synchronize
from .trace import LAUNCHES, spans_of, summarise, write_perfetto

TRACED = (Variant("dispatch trace=on"), Variant("combine trace=on"))


def trace_ep_point(point: Point, layer: Layer, store: ArtifactStore, watchdog_ns: int, out: Path) -> dict[str, Any]:
    """Traces both kernels; all ranks together.  Rank 0's record is of its own launches, and a file of each for Perfetto goes to `out`."""
    problem = without_clamp(point.problem)
    dispatch, combine = {"saving_experts": as_of_many(point), "trace": True}, {"trace": True}
    options: dict[str, Any] = {"store": store, "watchdog_ns": watchdog_ns, "dispatch": dispatch, "combine": combine}
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
            spans = list(spans_of(ep.memory.trace_of(config)))
            record["traced"][half] = {"trace": summarise(spans), "launch_us": max((one.end for one in spans), default=0.0)}
            write_perfetto(out / f"trace-{half}-{point.name.replace(' ', '-').replace('=', '')}.json", spans)
    ep.symmetric.close()
    return record
