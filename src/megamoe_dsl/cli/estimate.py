"""Rough estimate of a simulation's time and memory; within a factor of three on the shapes it was compared with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..blocks.gemm.base_config import BaseGemmConfig
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.halves.config import EpConfig
from ..problem import ProblemError

GIB = 1 << 30
FP64_BYTES = 8
BASE_BYTES = GIB // 2  # Python, torch and the compiler
COPIES = 3  # of the weights: as drawn, as the kernel reads them, and what making them takes
NORMAL_BYTES = 60  # per byte of one rank's FP4 weights while --random draws them
EXACT_RATE, NORMAL_RATE = 12e6, 3e6  # bytes of weights made per second, with the reference
INSTRUCTION_RATE = 60_000  # warp instructions per second
WEIGHTS_PER_INSTRUCTION = 100  # elements of a tile's weights per warp instruction of all roles
TOKEN_INSTRUCTIONS, RANK_INSTRUCTIONS = 5_000, 20_000
REFERENCE_RATE = 2e9  # multiplications per second of a GEMM's reference
LONG_SECONDS, ASKED_SECONDS = 600, 3600
SHORTER = "fewer --experts, --ranks or --tokens make it shorter"


@dataclass(frozen=True)
class Estimate:
    """Bytes of weights and of the ranks' buffers, and seconds without compiling."""

    weight_bytes: int
    buffer_bytes: int
    seconds: float

    @classmethod
    def of(cls, config: MegaMoeConfig | EpConfig, tokens: Sequence[int], launches: int, exact: bool) -> Estimate:
        """Estimates `launches` launches on the simulator with `tokens` tokens on each rank."""
        from ..quant import checkpoint_layout

        p = config.problem
        rank_bytes = sum(prod(shape) * dtype.itemsize for dtype, shape in checkpoint_layout(p).values())
        weights = rank_bytes * p.num_ranks
        drawing = 0 if exact or p.formats.weights.element_bits == 8 else NORMAL_BYTES * rank_bytes
        rows = sum(tokens) * p.topk
        experts = min(p.num_experts, rows)
        tiles = max(experts, rows // config.block_m)
        instructions = tiles * 3 * p.hidden * p.intermediate / WEIGHTS_PER_INSTRUCTION
        instructions += TOKEN_INSTRUCTIONS * sum(tokens) + RANK_INSTRUCTIONS * p.num_ranks
        seconds = weights / (EXACT_RATE if exact else NORMAL_RATE) + instructions / INSTRUCTION_RATE
        held = weights * (COPIES + launches - 1) + drawing
        return cls(held, 2 * config.symmetric.size * p.num_ranks, seconds * launches)

    @classmethod
    def of_gemm(cls, config: BaseGemmConfig, rows: int, launches: int) -> Estimate:
        p = config.problem
        tiles = max(min(p.num_groups, rows), rows // config.block_m)
        seconds = tiles * p.n * p.k / WEIGHTS_PER_INSTRUCTION / INSTRUCTION_RATE
        weights, results = p.num_groups * p.n * p.k * (FP64_BYTES + COPIES), rows * (p.n + p.k) * FP64_BYTES
        return cls(weights, results, seconds * launches + rows * p.n * p.k / REFERENCE_RATE)

    @property
    def num_bytes(self) -> int:
        return BASE_BYTES + self.weight_bytes + self.buffer_bytes

    def require_memory(self, there: int, weights: tuple[str, object], tokens: tuple[str, object]) -> None:
        """Raises `ProblemError` if more than `there` bytes are needed; it names the field and value of `weights` or of `tokens`."""
        if self.num_bytes > there:
            allowed = f"fewer: about {self.num_bytes / GIB:,.0f} GiB of memory are needed, {there / GIB:,.0f} GiB are there"
            raise ProblemError(*(weights if self.weight_bytes > self.buffer_bytes else tokens), allowed)

    def require_yes(self, yes: bool) -> None:
        """Raises `ProblemError` for a simulation of more than an hour without --yes."""
        if self.seconds > ASKED_SECONDS and not yes:
            raise ProblemError("--yes", yes, f"given to start what takes {self}: {SHORTER}")

    def __str__(self) -> str:
        minutes, hours = self.seconds / 60, self.seconds / 3600
        time = f"{self.seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 3 else f"{hours:,.0f} hours"
        return f"about {self.num_bytes / GIB:,.1f} GiB of memory and {time}"


def physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
