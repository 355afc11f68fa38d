"""Lower bounds on the time of a call: work counted, divided by ceilings measured on the GPU (ceilings.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..problem import Problem
from ..tuned import DEFAULT_GPU

WEIGHT_BYTES = {"fp8xfp8": 1.0, "fp8xfp4": 0.5 + 1 / 32}
OUTPUT_BYTES = 2  # BF16 rows travel back to the token's rank: the larger of the two directions


@dataclass(frozen=True)
class Work:
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


@dataclass(frozen=True)
class Load:
    """What routing gives one rank.

    received  tokens, once per local expert that they chose
    touched   local experts that received any
    remote    fraction of the received tokens that came from other ranks
    """

    received: float
    touched: float
    remote: float

    @classmethod
    def expected(cls, problem: Problem, tokens: int, remote: float) -> Load:
        """Of every rank, when all route `tokens` tokens, this fraction of them to other ranks, and each part uniformly."""
        p, pairs = problem, tokens * problem.topk
        return cls(pairs, p.experts_per_rank * (1 - (1 - 1 / p.num_experts) ** (pairs * p.num_ranks)), remote)


def count_work(problem: Problem, load: Load, gpu: str = DEFAULT_GPU) -> Work:
    """Work of a rank with this load.  HBM: weights of the experts that receive any token, once, and
    activations: x and y of every pair as E4M3 and BF16, the intermediate written and read."""
    p, limits = problem, known_ceilings()[measured_gpu(gpu)]
    pairs = load.received
    flop = pairs * 6.0 * p.hidden * p.intermediate
    hbm = load.touched * 3 * p.hidden * p.intermediate * WEIGHT_BYTES[p.recipe] + pairs * (3 * p.hidden + 2 * p.intermediate)
    nvlink = pairs * load.remote * p.hidden * OUTPUT_BYTES
    seconds = (flop / limits["fp8_flops"], hbm / limits["hbm_bytes"], nvlink / limits["nvlink_bytes"])
    return Work(flop, hbm, nvlink, *(1e6 * one for one in seconds))
