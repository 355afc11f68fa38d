"""Where the time of Linear1 goes: stamps of a traced kernel, summed by role and activity, and as a file for Perfetto."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.session import LAUNCHES
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.inspect.spans import spans_of, summarize, write_perfetto
from megamoe_dsl.layouts.records import trace_buffer
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.device_gemm import LoadedGemm
from megamoe_dsl.runtime.gemm_tensors import GemmTensors
from megamoe_dsl.target import Target
from moe_layers.inputs import DrawnCall, draw_weights
from moe_layers.point import ExpertPoint
from moe_layers.steps import SteppedExperts


def traced_config(point: ExpertPoint, target: Target) -> GemmConfig | Sm100GemmConfig:
    """Linear1's as it is chosen, with stamps."""
    config = point.layer.configs(target, point.tokens, trace=True).fc1
    assert isinstance(config, GemmConfig | Sm100GemmConfig)
    return config


def with_stamps(tensors: GemmTensors, config: GemmConfig | Sm100GemmConfig) -> GemmTensors:
    """The same with memory for the stamps of a traced kernel.  Raises `ProblemError` for a configuration without."""
    if not config.trace:
        raise ProblemError("trace", config.trace, "True of a configuration whose warps leave stamps")
    shape = trace_buffer(config.num_sms, config.num_threads // 32)["stamps"].field.shape
    return replace(tensors, trace=torch.zeros(shape, dtype=torch.int64, device=tensors.a.device))


def trace_experts(point: ExpertPoint, target: Target, store: ArtifactStore, out: Path) -> dict[str, Any]:
    """Launches the layer, then Linear1 with stamps, the last of several launches; a record, and a file for Perfetto in `out`."""
    call = DrawnCall.draw(point.layer, point.tokens, draw_weights(point.layer)).call
    SteppedExperts(point.layer.configs(target, point.tokens), store, call.x.device)(call)
    config = traced_config(point, target)
    assert isinstance(call.fc1, GemmTensors)
    tensors, kernel = with_stamps(call.fc1, config), LoadedGemm(config, store, call.x.device)
    for _ in range(LAUNCHES):
        kernel(tensors)
    torch.cuda.synchronize()
    assert tensors.trace is not None
    spans = list(spans_of(tensors.trace))
    out.mkdir(parents=True, exist_ok=True)
    write_perfetto(out / f"trace-fc1-{str(point).replace(':', '-')}.json", spans)
    return {"point": str(point), "trace": summarize(spans), "launch_us": max((one.end for one in spans), default=0.0)}
