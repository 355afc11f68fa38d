"""Joules that a call takes, of launches that follow one another as graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from megamoe_dsl.bench.timing import Times, graph_of, synchronize

LIBRARY = "libnvidia-ml.so.1"


class EnergyMeter:
    """Of torch's current device.  Raises OSError without NVML, and where it refuses."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL(LIBRARY)
        self._device = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(self._device))

    def joules(self) -> float:
        """So far; the counter moves every few tens of milliseconds."""
        value = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(value))
        return value.value / 1e3

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._nvml, name)(*arguments)
        if status:
            raise OSError(status, f"{name} of {LIBRARY} failed")


ENERGY_S = 1.0  # of each candidate: the counter of the driver moves every few tens of milliseconds, up to a hundred


def joules_in_turns(candidates: Mapping[str, Callable[[], None]], us: Mapping[str, float], turns: int) -> dict[str, Times] | None:
    """The median, least and most of so many turns of `joules_of`; None where NVML does not say."""
    known = [one for one in (joules_of(candidates, us) for _ in range(turns)) if one is not None]
    return {name: Times.of([one[name] for one in known]) for name in candidates} if known else None


def joules_of(candidates: Mapping[str, Callable[[], None]], us: Mapping[str, float]) -> dict[str, float] | None:
    """Joules per call of all ranks together, of candidates that take these microseconds; None where NVML does not say."""
    try:
        meter = EnergyMeter()
    except OSError as error:
        print(f"no energy: {error}", flush=True)
        return None
    return {name: joules_per_call(run, meter, max(20, int(ENERGY_S * 1e6 / us[name]))) for name, run in candidates.items()}


def joules_per_call(run: Callable[[], None], meter: EnergyMeter, calls: int) -> float:
    """Of so many calls that follow one another as graphs."""
    return joules_per_run(graph_of(run, 10).replay, meter, calls // 10 + 1) / 10


def joules_per_run(run: Callable[[], object], meter: EnergyMeter, count: int) -> float:
    """Of all ranks together, of `count` runs that follow one another, after a third as many that nobody counts."""
    for _ in range(count // 3 + 1):
        run()
    synchronize()
    before = meter.joules()
    for _ in range(count):
        run()
    torch.cuda.synchronize()
    used = torch.tensor(meter.joules() - before, dtype=torch.float64, device="cuda")
    if dist.is_initialized():
        dist.all_reduce(used)
    return float(used) / count
