"""The model's constants of a GPU: its rates, and values fitted to measured times.  Each GPU has a JSON file beside this one, whose
`sources` say where each group of values comes from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from megamoe_dsl.arch import GPUS, Gpu
from megamoe_dsl.problem import ProblemError

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Calibration:
    """Rates in bytes per microsecond or per clock, times in microseconds, energies in joules."""

    clock: float  # the highest, GHz
    power: float  # W; above it the clock is lowered
    hbm: float  # and nvlink: achieved bytes per us
    nvlink: float
    l2_per_clock: float  # bytes from L2, of all SMs together
    port_per_clock: float  # bytes from L2 to one SM
    l2_kept: float  # bytes into L2 after which an untouched line is evicted
    l2_fill: float  # L2 bandwidth of a byte filled from HBM, relative to one read
    weights_kept: float  # share of L2 with weights of the previous launch
    hbm_latency: float  # of a load; one from L2 takes `l2_latency` of it
    l2_latency: float
    spread: float  # of that latency among SMs
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
    sources: dict[str, str]  # origin of each group of values


CALIBRATED = {"H200": "NVIDIA H200", "B200": "NVIDIA B200"}
"""CUDA's names of calibrated GPUs, by the names that `--gpu` takes."""


def find_gpu(name: str) -> Gpu:
    """A GPU by its name in `CALIBRATED`.  Raises `ProblemError` for others."""
    if name not in CALIBRATED:
        raise ProblemError("gpu", name, f"one of {', '.join(CALIBRATED)}")
    return GPUS[CALIBRATED[name]]


@lru_cache
def calibration_of(gpu: str) -> Calibration:
    """The calibration of a GPU, by CUDA's name."""
    return Calibration(**json.loads((FOLDER / f"{gpu.lower().replace(' ', '_')}.json").read_text()))
