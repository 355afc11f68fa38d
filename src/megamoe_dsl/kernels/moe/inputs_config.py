"""How the inputs stage is computed: one kernel for all shapes, whose grid strides over the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...arch import ARCH_BY_NAME, ARCHES
from ...config_error import CheckedConfig
from ...problem import Problem
from ...shared_experts import SharedExperts
from .layouts.symmetric import checked_pool_rows, symmetric_buffer

THREADS = 512
CHUNK = 256  # channels that a warp quantizes at a time
PER_LANE = CHUNK // 32


@dataclass(frozen=True)
class PreDispatchConfig(CheckedConfig):
    """Compile-time choices of the pre-dispatch kernel; raises `ConfigError` where a field is out of range."""

    arch = ARCH_BY_NAME
    cluster: ClassVar[int] = 1
    num_threads: ClassVar[int] = THREADS

    problem: Problem
    num_sms: int  # CTAs of the grid
    arch_name: str  # name of the architecture, which decides the layout of the symmetric buffer
    # True: tokens have the recipe's format and scales already, and are copied; False: tokens are BF16, and are quantized where the
    # recipe's have scales
    quantized: bool = False
    shared: int = 0  # shared experts of each rank, which take as many slots of each token; callers' routing omits them (shared_experts.py)
    pool_rows: int | None = None  # as in the configurations of the kernels that read what it leaves

    def __post_init__(self) -> None:
        self.check_declared(Problem)
        object.__setattr__(self, "pool_rows", checked_pool_rows(self.pool_rows))
        self.require_between("shared", 0, self.problem.max_experts_per_token - 1, ", one less than slots and experts of a rank")
        self.require("num_sms", self.num_sms >= 1, "positive")
        self.require("arch_name", self.arch_name in ARCHES, "one of " + ", ".join(ARCHES))

    shared_experts = property(lambda self: SharedExperts.within(self.problem, self.shared))
    symmetric = property(lambda self: symmetric_buffer(self.problem, self.arch, self.pool_rows))
    copies = property(lambda self: self.quantized or not self.problem.formats.scaled)  # whether tokens stay as they are given
    lanes_per_scale = property(lambda self: self.problem.formats.activations.channels // PER_LANE)
