"""The roofline of a rank's launch: the least time for its FLOP, HBM bytes and NVLink bytes, at rates measured on its GPU."""

from __future__ import annotations

from dataclasses import dataclass

from ...problem import Problem
from ...recipe import Format
from ...tuned import DEFAULT_GPU


@dataclass(frozen=True)
class Ceilings:
    """Measured rates of a GPU, per second."""

    fp8_flops: float  # of a grouped FP8 GEMM of 32 experts x 384 rows
    hbm_bytes: float  # of a read-only kernel
    nvlink_bytes: float  # pulled from a peer, 256 MiB by each of 8 GPUs at once


CEILINGS = {
    "NVIDIA H100 80GB HBM3": Ceilings(1071e12, 3.08e12, 372e9),  # 2026-11-22; NVLink of H200s, which have as many links
    "NVIDIA H200": Ceilings(1190e12, 4.35e12, 372e9),  # 2026-11-20
}


def value_bytes(one: Format) -> float:
    """Bytes of a value with its scales, those that many rows share left out."""
    return one.element_bits / 8 if one.rows > 1 else one.bytes_per_value


@dataclass(frozen=True)
class Load:
    """What routing gives one rank."""

    received: float  # tokens, once per local expert that they chose
    touched: float  # local experts that received any
    remote: float  # fraction of the received tokens that came from other ranks

    @classmethod
    def expected(cls, problem: Problem, tokens: int, remote: float) -> Load:
        """The load of every rank when all route `tokens` tokens, this fraction of them to other ranks, each part uniformly."""
        p, pairs = problem, tokens * problem.topk
        return cls(pairs, p.experts_per_rank * (1 - (1 - 1 / p.num_experts) ** (pairs * p.num_ranks)), remote)


@dataclass(frozen=True)
class Bound:
    """Work of one rank in one call, and the least time of each part in microseconds."""

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


def measured_gpu(gpu: str) -> str:
    """The GPU whose ceilings are used: this one, or H200 if it has no measured ceilings."""
    return gpu if gpu in CEILINGS else DEFAULT_GPU


def bound_of(problem: Problem, load: Load, gpu: str = DEFAULT_GPU) -> Bound:
    """Work and lower bounds of a rank of the fused layer with this load.

    HBM: weights of the experts that receive any token, once, and activations: x and y of every pair, the intermediate written and read;
    scales of activations are left out.  NVLink, either direction: a remote slot's tokens one way and its results the other, and as many
    slots of the other ranks the other way round, so x and y of every remote pair."""
    p, formats, pairs, limits = problem, problem.formats, load.received, CEILINGS[measured_gpu(gpu)]
    x, hidden, y = (one.element_bits / 8 for one in (formats.activations, formats.hidden, formats.combine))
    flop = pairs * 6.0 * p.hidden * p.intermediate
    hbm = load.touched * 3 * p.hidden * p.intermediate * value_bytes(formats.weights)
    hbm += pairs * ((x + y) * p.hidden + 2 * hidden * p.intermediate)
    nvlink = pairs * load.remote * p.hidden * (x + y)
    flops = limits.fp8_flops / max(formats.activations.element_bits // 8, 1)  # BF16 takes twice as long
    seconds = flop / flops, hbm / limits.hbm_bytes, nvlink / limits.nvlink_bytes
    return Bound(flop, hbm, nvlink, *(1e6 * one for one in seconds))
