"""The fused kernel, and its stages, in the same turns as the two halves of a layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from difference import relative_difference
from fusion import time_stages
from megamoe_dsl import SM90, Target, choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.ep import FEW_LAUNCHES, MANY_TOKENS, EpRun, ep_point, without_clamp
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import Layer, Point
from megamoe_dsl.bench.timing import launches_of, synchronize
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from unfused import bind_stages


def fused_config(point: Point, host: Host) -> Sm90Config:
    """Without a clamp, as the activation between the halves."""
    return choose(without_clamp(point.problem), Target(SM90, host.num_sms, host.gpu), point.tokens, **point.pool)


def point_beside_fused(run: EpRun, point: Point, layer: Layer, store: ArtifactStore, host: Host) -> dict[str, Any]:
    """The record of `ep_point` with the times of both, of each stage, and how far y is from the fused kernel's; all ranks together."""
    config, watchdog_ns = fused_config(point, host), run.watchdog_ms * 1_000_000
    other = torch.empty(point.tokens, point.problem.hidden, dtype=torch.bfloat16, device="cuda")
    beside: dict[str, Any] = {}

    def others(inputs: Inputs, y: torch.Tensor) -> dict[str, Callable[[], None]]:
        symmetric = SymmetricBuffer.allocate(config.problem, config.arch, pool_rows=config.pool_rows)
        fused, stages = layer.bind(store, config, symmetric, watchdog_ns), bind_stages(layer, store, config, symmetric, watchdog_ns)
        fused.buffers.load(inputs)
        synchronize()
        fused(other)
        fused.synchronize()
        launches = launches_of(point.tokens) if point.tokens <= MANY_TOKENS else FEW_LAUNCHES
        beside.update(difference=relative_difference(y, other), stages_us=time_stages(stages, other, launches), symmetric=symmetric)
        return {"fused": partial(fused, other), "unfused": partial(stages, other)}

    record = ep_point(point, layer, store, host.target, run.kernels, watchdog_ns, others)
    beside.pop("symmetric").close()
    return record | beside
