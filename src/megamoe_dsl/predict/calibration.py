"""What the model knows of a GPU: its rates, and what was fitted to measured times; a JSON file beside this one for each GPU.

A file says where every group of its values comes from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..arch import GPUS, Gpu
from ..problem import ProblemError

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Calibration:
    """Rates in bytes per microsecond or per clock, times in microseconds, energies in joules."""

    clock: float  # the highest, GHz
    power: float  # at which the clock is lowered, W
    hbm: float  # and nvlink: bytes per us that are reached
    nvlink: float
    l2_per_clock: float  # bytes that L2 serves
    port_per_clock: float  # bytes that an SM takes from L2
    l2_kept: float  # bytes that come into L2 before what was touched has left it
    l2_fill: float  # L2 bandwidth that filling takes, beside reading
    weights_kept: float  # share of L2 that still has weights of the launch before
    hbm_latency: float  # of a load; one from L2 takes `l2_latency` of it
    l2_latency: float
    spread: float  # by which SMs differ in that
    tile: float  # between tiles
    start: float  # and start_per_token: until counts are known
    start_per_token: float
    # and pull_round, pull_rate: of a token: before and after its row moves, of the chunks that a warp moves at a time, bytes per us
    pull: float
    pull_round: float
    pull_rate: float
    tail: float  # last barrier, combine's latency, and the launch
    static_power: float  # W
    multiply_energy: float  # of 128 x 256 x 128 at the highest clock
    hbm_energy: float  # of a byte
    energy_exponent: float  # of the clock, of the energy of multiplying
    kernel: dict[str, float]  # architecture's own constants of a K block and an epilogue, by name (sm90.py, sm100.py)
    sources: dict[str, str]  # what comes from where


def path_of(gpu: str) -> Path:
    return FOLDER / f"{gpu.lower().replace(' ', '_')}.json"


CALIBRATED = {name.split()[1]: name for name in GPUS if path_of(name).exists()}
"""GPUs by a short name, as H200 is NVIDIA H200."""


def find_gpu(name: str) -> Gpu:
    """A GPU by CUDA's name or a short one, as H200.  Raises `ProblemError` for one that nobody has calibrated."""
    short = {full: short for short, full in CALIBRATED.items()}.get(name, name.upper())
    if short not in CALIBRATED:
        raise ProblemError("gpu", name, f"one of {', '.join(CALIBRATED)}")
    return GPUS[CALIBRATED[short]]


@lru_cache
def calibration_of(gpu: str) -> Calibration:
    """The calibration of a GPU, given by CUDA's name of it."""
    return Calibration(**json.loads(path_of(gpu).read_text()))
