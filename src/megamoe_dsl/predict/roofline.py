"""Lower bounds on the time of a call: work counted, divided by ceilings measured on the GPU (ceilings.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..kernels.moe.work import Load
from ..kernels.registry import find_kernel
from ..problem import Problem
from ..tuned import DEFAULT_GPU


@dataclass(frozen=True)
class Bound:
    """What one rank has to do in one call, and the least microseconds that each part takes."""

    flop: float
    hbm_bytes: float
    nvlink_bytes: float
    flop_us: float
    hbm_us: float
    nvlink_us: float

    @property
    def bound_us(self) -> float:
        return max(self.flop_us, self.hbm_us, self.nvlink_us)

    @property
    def bound_by(self) -> str:
        return max(("flop", "hbm", "nvlink"), key=lambda name: getattr(self, f"{name}_us"))


@cache
def known_ceilings() -> dict[str, dict[str, float]]:
    """FLOP and bytes per second by GPU."""
    found: dict[str, dict[str, float]] = json.loads((Path(__file__).parent / "ceilings.json").read_text())
    return found


def measured_gpu(gpu: str) -> str:
    """Whose ceilings are taken for a GPU: its own, or an H200's where nobody has measured them."""
    return gpu if gpu in known_ceilings() else DEFAULT_GPU


def bound_of(problem: Problem, load: Load, gpu: str = DEFAULT_GPU) -> Bound:
    """The work of a rank of the fused layer with this load, and how long a GPU takes for it at least."""
    work, limits = find_kernel("mega_moe").work(problem, load), known_ceilings()[measured_gpu(gpu)]
    assert work is not None
    seconds = work.flop / limits["fp8_flops"], work.hbm_bytes / limits["hbm_bytes"], work.nvlink_bytes / limits["nvlink_bytes"]
    return Bound(work.flop, work.hbm_bytes, work.nvlink_bytes, *(1e6 * one for one in seconds))
