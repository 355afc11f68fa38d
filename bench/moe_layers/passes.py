"""Forward and backward pass of a layer, computed in several ways: calls to time, and the bytes that they take."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any

import torch

from energy_per_call import ENERGY_S, EnergyMeter, joules_per_run
from megamoe_dsl.bench.timing import Times, time_back_to_back
from training_tables import DENSE

PASSES = {"forward": 1, "backward": 2, "both": 3}
"""Times the FLOP of a forward pass."""
DENSE_SIZE = 8192
SUSTAINED_US = 60_000
PAUSE_S = 0.2  # after which a GPU takes a step at the clock that it has below its power cap
AHEAD_CYCLES = 2_000_000  # for the host, which is then a step ahead


@dataclass(frozen=True)
class Passes:
    """forwards    y by each way
    leaves      what the gradients of a way are of
    dy          the gradient of y
    once        ways whose backward pass can follow a forward pass once
    one_thread  ways whose backward pass runs in the thread that asks for it
    """

    forwards: dict[str, Callable[[], torch.Tensor]]
    leaves: dict[str, list[torch.Tensor]]
    dy: torch.Tensor
    once: Collection[str] = ()
    one_thread: Collection[str] = ()

    def gradients(self, way: str) -> tuple[torch.Tensor, ...]:
        """Of the leaves, by forward and backward pass."""
        return self.backward(way, self.forwards[way]())

    def backward(self, way: str, y: torch.Tensor, **more: bool) -> tuple[torch.Tensor, ...]:
        with torch.autograd.set_multithreading_enabled(way not in self.one_thread):
            return torch.autograd.grad(y, self.leaves[way], self.dy, **more)

    def same_bits(self, way: str, other: str) -> bool:
        """Whether both ways give the same gradients."""
        return all(torch.equal(*pair) for pair in zip(self.gradients(way), self.gradients(other), strict=True))

    def calls(self) -> dict[str, Callable[[], Any]]:
        """Each way's forward pass, backward pass, and both."""
        found: dict[str, Callable[[], Any]] = {}
        for way, forward in self.forwards.items():
            found[f"{way} forward"] = forward
            if way not in self.once:
                found[f"{way} backward"] = partial(self.backward, way, forward(), retain_graph=True)
            found[f"{way} both"] = partial(self.gradients, way)
        return found

    def times(self, turns: int, flop: float) -> tuple[dict[str, Times], dict[str, float]]:
        """Of every way's passes and of a dense product, in turns that last; and TFLOPS, a forward pass being so many FLOP."""
        of_calls = {f"{way} {one}": times * flop for way in self.forwards for one, times in PASSES.items()} | {DENSE: 2.0 * DENSE_SIZE**3}
        us = sustained(self.calls() | {DENSE: dense_product()}, turns)
        return us, {name: of_calls[name] / one.median / 1e6 for name, one in us.items()}

    def power(self, turns: int) -> dict[str, dict[str, Any]]:
        """Microseconds of each way's both passes and of a dense product in turns that last, and after a pause; joules in between."""
        calls: dict[str, Callable[[], Any]] = {way: partial(self.gradients, way) for way in self.forwards}
        calls[DENSE] = dense_product()
        us, meter = sustained(calls, turns), EnergyMeter()
        joules = {name: joules_per_run(call, meter, math.ceil(ENERGY_S * 1e6 / us[name].median)) for name, call in calls.items()}
        rested = {name: Times.of([time_rested(call) for _ in range(turns)]) for name, call in calls.items()}
        return {
            "us": {name: asdict(one) for name, one in us.items()},
            "joules": joules,
            "rested": {n: asdict(t) for n, t in rested.items()},
        }

    def memory(self) -> dict[str, dict[str, int]]:
        """Bytes that each way keeps between the passes, y left out, and at most allocates, results left out."""
        return {way: self._memory(way) for way in self.forwards}

    def _memory(self, way: str) -> dict[str, int]:
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = self.forwards[way]()
        kept = torch.cuda.memory_allocated() - before - y.nbytes
        results = torch.autograd.grad(y, self.leaves[way], self.dy)
        return {"kept": kept, "peak": torch.cuda.max_memory_allocated() - before - sum(one.nbytes for one in (y, *results))}


def dense_product() -> Callable[[], torch.Tensor]:
    return partial(torch.mm, *torch.randn(2, DENSE_SIZE, DENSE_SIZE, dtype=torch.bfloat16, device="cuda"))


def sustained(calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, Times]:
    """Each call so often that a turn lasts, after an uncounted one that lasts as long: a GPU at its power cap clocks as what ran in the
    last tens of milliseconds has left it."""
    often = {name: math.ceil(SUSTAINED_US / one.median) for name, one in time_back_to_back(calls, 1, 1).items()}

    def repeated(name: str) -> None:
        for _ in range(often[name]):
            calls[name]()

    times = time_back_to_back({name: partial(repeated, name) for name in calls}, 1, turns)
    return {name: Times.of([value / often[name] for value in astuple(one)]) for name, one in times.items()}


def time_rested(call: Callable[[], Any]) -> float:
    """Microseconds of one call of the GPU, after a pause."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    time.sleep(PAUSE_S)
    torch.cuda._sleep(AHEAD_CYCLES)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def summary(record: dict[str, Any]) -> str:
    """A record of passes in some lines."""
    times = "  ".join(f"{name} {one['median']:.0f}" for name, one in record["us"].items())
    rates = "  ".join(f"{name} {one:.0f}" for name, one in record["tflops"].items())
    used = "  ".join(f"{name} {one['kept'] / 2**20:.0f} / {one['peak'] / 2**20:.0f}" for name, one in record["bytes"].items())
    errors = "  ".join(f"{name} " + " ".join(f"{value:.2e}" for value in one.values()) for name, one in record["errors"].items())
    return f"{record['point']} passed {record['passed']}: us {times}\n  TFLOPS {rates}\n  MiB kept / peak {used}\n  errors {errors}"
