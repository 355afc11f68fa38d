"""The four launches of a call of `moe` in other ways: what the host takes for each, and the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

from call_times import CALLS, REPEATS, time_host
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.timing import graph_of, time_back_to_back
from megamoe_dsl.runtime.cuda_kernel import call as driver_call
from megamoe_dsl.runtime.expert_call import ExpertCall
from megamoe_dsl.runtime.experts import moe
from megamoe_dsl.runtime.tile_counters import tile_counters
from megamoe_dsl.target import Target
from moe_layers.inputs import DrawnCall, draw_weights
from moe_layers.point import ExpertPoint
from moe_layers.steps import SteppedExperts

Way = Callable[[], Any]
MOST_NODES = 16


def ways_of(call: ExpertCall, experts: SteppedExperts) -> tuple[dict[str, Way], dict[str, str]]:
    """All into the call's y, and why some are not there.

    launches      as `moe` makes them, without what it does around them
    graph         of them, replayed
    graph, moved  the same, with arguments of the first and the last of its nodes, which have the caller's addresses, set before
    """
    prepared, counter = experts.prepare(call), tile_counters(call.x.device).address()
    x, idx, weights, y = (tensor.data_ptr() for tensor in (call.x, call.topk_idx, call.topk_weights, call.y))
    launches = partial(experts.launch, prepared, counter, x, idx, weights, y, {"a": x} if experts.moves_x else {})
    launches()
    torch.cuda.synchronize()
    ways: dict[str, Way] = {"launches": launches, "graph": graph_of(launches).replay}
    refused: dict[str, str] = {}
    try:
        ways["graph, moved"] = moving(graph_of(launches, keep_graph=True))
    except (TypeError, RuntimeError, AttributeError) as error:  # of a torch that keeps no graph
        refused["graph, moved"] = f"{type(error).__name__}: {error}"
    return ways, refused


def moving(graph: Any) -> Way:
    """Replays a graph after its first and last kernel have been given their arguments anew."""
    graph.instantiate()
    handle, executable = driver.CUgraph(graph.raw_cuda_graph()), driver.CUgraphExec(graph.raw_cuda_graph_exec())
    nodes, count = driver_call(driver.cuGraphGetNodes, handle, MOST_NODES)
    first, *_, last = nodes[:count]
    changes = [(executable, node, driver_call(driver.cuGraphKernelNodeGetParams, node)) for node in (first, last)]

    def replay() -> None:
        for change in changes:
            driver_call(driver.cuGraphExecKernelNodeSetParams, *change)
        graph.replay()

    return replay


def same_bits(ways: dict[str, Way], y: torch.Tensor, expected: torch.Tensor) -> dict[str, bool]:
    """Whether each way makes the expected y."""
    found = {}
    for name, way in ways.items():
        y.zero_()
        way()
        found[name] = torch.equal(y, expected)
    return found


def run_launches(
    points: Sequence[ExpertPoint], target: Target, folder: Path, count: int = CALLS, repeats: int = REPEATS
) -> Iterator[dict[str, Any]]:
    """A record of each point, of medians of repeats with `count` calls of each way."""
    for point in points:
        weights = draw_weights(point.layer)
        call = DrawnCall.draw(point.layer, point.tokens, weights).call
        experts = SteppedExperts(point.layer.configs(target, point.tokens), ArtifactStore(folder), call.x.device)
        yield {"point": str(point), **timed(call, experts, count, repeats)}
        del weights, call, experts
        torch.cuda.empty_cache()


def timed(call: ExpertCall, experts: SteppedExperts, count: int, repeats: int) -> dict[str, Any]:
    """Times of every way and of `moe`, and whether all give the same bits."""
    expected = experts(call).clone()
    ways, refused = ways_of(call, experts)
    same = same_bits(ways, call.y, expected)
    w = call.operands
    whole = partial(moe, call.x, w.w1, w.w1_sf, w.w2, w.w2_sf, topk_idx=call.topk_idx, topk_weights=call.topk_weights)
    same["moe"] = torch.equal(whole(), expected)
    calls: dict[str, Way] = {**ways, "moe": whole, "torch add_": partial(torch.zeros_like(call.x).add_, 1)}
    return {
        "host_us": {name: asdict(times) for name, times in time_host(calls, count, repeats).items()},
        "us": {name: asdict(times) for name, times in time_back_to_back(calls, count).items()},
        "same_bits": same,
        "passed": all(same.values()),
        "refused": refused,
    }
