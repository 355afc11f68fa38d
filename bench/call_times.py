"""Microseconds of host time that a call takes: Python, torch and the driver, until the launch is on its way; and of all of a call.

At few tokens a layer may be over before the host has made the next call, so that outside a graph the host is what a token waits for.
"""

from __future__ import annotations

import gc
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baselines.baseline import BASELINE
from baselines.layer import LayerBeside
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import SEED, Point
from megamoe_dsl.bench.timing import Times, synchronize, time_back_to_back
from megamoe_dsl.cases import TokenInputs
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer

CALLS = 50
"""Between two looks at the clock: few enough that none waits for room in the GPU's queue."""
REPEATS = 41
WARM_UPS = 5
CPU_MODEL = "model name"

Call = Callable[[], Any]


def time_host(calls: Mapping[str, Call], count: int = CALLS, repeats: int = REPEATS) -> dict[str, Times]:
    """Microseconds of host time per call: in every repeat, in an order that changes, `count` calls of each, on an idle GPU."""
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    draw = random.Random(repeats)
    with no_collection():
        for _ in range(repeats):
            for name in draw.sample(list(calls), len(calls)):
                call = calls[name]
                synchronize()
                start = time.perf_counter_ns()
                for _ in range(count):
                    call()
                found[name].append((time.perf_counter_ns() - start) / count / 1e3)
    synchronize()
    return {name: Times.of(values) for name, values in found.items()}


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected inside: it would be counted for whichever call it befell."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def compiled(step: Callable[..., torch.Tensor], backend: str, *tensors: torch.Tensor) -> Call:
    """The same under torch.compile, compiled."""
    call = partial(torch.compile(step, backend=backend, fullgraph=True), *tensors)
    call()
    return call


def captured(step: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> Call:
    """The replay of a CUDA graph with one call."""
    step(*tensors)
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(*tensors)
    return graph.replay


def measure_host(point: Point, layer: LayerBeside, store: ArtifactStore, backend: str = "inductor", **how_often: int) -> dict[str, Any]:
    """Times at a point of one rank: the layer on BF16 inputs, on FP8 ones, and on FP8 ones in its own buffers, each plain, under
    torch.compile and as a graph; its kernel alone; an addition in place; and the baseline, if `layer` has one.  `how_often` as in
    `time_host`.

    `host_us` is the host's time per call, `us` that between two events around `CALLS` calls in a row: the longer of host and device.
    A way to call that fails has an entry in `errors` instead.  Raises `ArtifactError` for a missing kernel.
    """
    problem, inputs = point.problem, point.draw(SEED)
    symmetric = SymmetricBuffer.allocate(problem)
    moe = MegaMoE(problem, layer.weights, store=store, symmetric=symmetric)
    y = torch.zeros(point.tokens, problem.hidden, dtype=torch.bfloat16, device=inputs.x.device)

    def forward(x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return moe(x, idx, weights)

    def forward_fp8(x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, x_sf: torch.Tensor) -> torch.Tensor:
        return moe(x, idx, weights, x_sf=x_sf)

    routing = (inputs.topk_idx, inputs.topk_weights)
    steps: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
        "forward, BF16": (forward, (torch.randn(y.shape, device=y.device).bfloat16(), *routing)),
        "forward, FP8": (forward_fp8, (inputs.x, *routing, inputs.x_sf)),
        "forward, FP8 in the buffer": (forward_fp8, in_the_buffer(moe, inputs)),
    }
    calls: dict[str, Call] = {}
    errors: dict[str, str] = {} if layer.baseline_error is None else {BASELINE: layer.baseline_error}
    for name, (step, tensors) in steps.items():
        calls[name] = partial(step, *tensors)
        for way, make in (("compiled", partial(compiled, step, backend)), ("graph", partial(captured, step))):
            try:
                calls[f"{name}, {way}"] = make(*tensors)
            except Exception as error:  # without a C++ compiler, say: the others can be timed
                errors[f"{name}, {way}"] = f"{type(error).__name__}: {error}"[:300]
    calls |= {"kernel": partial(moe.kernels[problem.max_tokens_per_rank], y), "torch add_": partial(y.add_, 1)}
    if layer.baseline is not None:
        layer.baseline.allocate(problem)
        layer.baseline.load(inputs)
        calls[BASELINE] = partial(layer.baseline, y)
    host = {name: asdict(times) for name, times in time_host(calls, **how_often).items()}
    whole = {name: asdict(times) for name, times in time_back_to_back(calls, CALLS).items()}
    moe.synchronize()
    calls.clear()
    if layer.baseline is not None:
        layer.baseline.free()
    symmetric.close()
    versions = {} if layer.baseline is None else {"baseline_version": layer.baseline.version}
    return {"point": asdict(point), "tokens": point.tokens, "cpu": cpu(), "host_us": host, "us": whole, "errors": errors, **versions}


def in_the_buffer(moe: MegaMoE, inputs: TokenInputs) -> tuple[torch.Tensor, ...]:
    """x, topk_idx, topk_weights and x_sf, in the layer's own buffers."""
    places = moe.input_buffers()
    found = tuple(getattr(places, name)[: len(inputs.x)] for name in ("x", "topk_idx", "topk_weights", "x_sf"))
    for place, tensor in zip(found, (inputs.x, inputs.topk_idx, inputs.topk_weights, inputs.x_sf), strict=True):
        place.copy_(tensor)
    return found


def cpu() -> str:
    """The processor's model, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(CPU_MODEL)), platform.machine())


def text_of(record: dict[str, Any]) -> str:
    """A record as text, a line per way to call."""
    columns = f"{'median':>9} {'low':>9} {'high':>9}"
    lines = [f"{record['name']}: us per call, host time on {record['cpu']}, and all of a call", f"{columns} {columns}"]
    for name in record["host_us"]:
        cells = (f"{one['median']:9.1f} {one['low']:9.1f} {one['high']:9.1f}" for one in (record["host_us"][name], record["us"][name]))
        lines.append(f"{' '.join(cells)}  {name}")
    return "\n".join(lines + [f"{'FAILED':>9} {'':49}  {name}: {error}" for name, error in record["errors"].items()])
