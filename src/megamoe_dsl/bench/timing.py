"""Times candidates in turns: every repeat measures all of them, so that clock drift affects all alike.

At the power cap, a GPU's clock depends on what ran before: of equal candidates in a fixed order, the one after a slow one was 5 % faster.
So the order changes with every repeat, and each candidate runs once, uncounted, before it is measured.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..cases import TokenInputs

REPEATS = 7
GRAPH_LAUNCHES = 10


@dataclass(frozen=True)
class Times:
    """Microseconds per launch: the median over repeats of the slowest rank, and its smallest and largest repeat."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Times:
        return cls(statistics.median(values), min(values), max(values))


def launches_of(tokens: int) -> int:
    """Back-to-back launches in a repeat: some tens of milliseconds."""
    return 20 if tokens <= 2048 else 8


def synchronize() -> None:
    """This device, then all ranks."""
    torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
        torch.cuda.synchronize()


def measure(run: Callable[[], None], launches: int) -> float:
    """Microseconds per launch of one repeat on this rank; a call of `run` makes `launches` launches.  An uncounted call goes before,
    without a pause: ranks leave a host barrier microseconds apart, which the launches' own waits even out."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    synchronize()
    run()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / launches


def over_ranks(repeats: list[float], device: str = "cuda") -> Times:
    """Per repeat the slowest rank; then the median and the spread."""
    slowest = torch.tensor(repeats, dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return Times.of(slowest.tolist())


def time_back_to_back(candidates: Mapping[str, Callable[[], None]], launches: int, repeats: int = REPEATS) -> dict[str, Times]:
    """`launches` launches of each candidate between two events, in turns."""

    def repeat(one: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(launches):
                one()

        return run

    return _in_turns({name: repeat(one) for name, one in candidates.items()}, launches, repeats)


def graph_of(one: Callable[[], object], launches: int = 1, **options: bool) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `launches` launches, with torch's `options` for it.  Raises RuntimeError where a graph cannot hold them."""
    synchronize()
    graph = torch.cuda.CUDAGraph(**options)
    with torch.cuda.graph(graph):
        for _ in range(launches):
            one()
    return graph


def time_graphs(candidates: Mapping[str, Callable[[], None]], repeats: int = REPEATS) -> dict[str, Times]:
    """The same for CUDA graphs of `GRAPH_LAUNCHES` launches."""
    graphs = {name: graph_of(one, GRAPH_LAUNCHES) for name, one in candidates.items()}
    for graph in graphs.values():  # the first replay uploads
        synchronize()
        graph.replay()
    return _in_turns({name: graph.replay for name, graph in graphs.items()}, GRAPH_LAUNCHES, repeats)


def _in_turns(runs: Mapping[str, Callable[[], None]], launches: int, repeats: int) -> dict[str, Times]:
    found: dict[str, list[float]] = {name: [] for name in runs}
    draw = random.Random(repeats)  # the same on all ranks
    for _ in range(repeats):
        for name in draw.sample(list(runs), len(runs)):
            found[name].append(measure(runs[name], launches))
    return {name: over_ranks(values) for name, values in found.items()}


BATCHES = 8
"""Kernels multiply a tile's padding rows too: zeros in a new buffer, which take less power than data of earlier launches."""
FIRST_SEED = 1001


def run_earlier_batches(
    draw: Callable[[int], TokenInputs], load: Callable[[TokenInputs], None], launches: Iterable[Callable[[], None]], batches: int = BATCHES
) -> None:
    """Loads batches that `draw` makes from seeds, and calls all `launches` on each; all ranks together."""
    synchronize()
    for seed in range(FIRST_SEED, FIRST_SEED + batches):
        load(draw(seed))
        for launch in launches:
            launch()
