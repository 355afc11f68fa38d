"""How the inputs stage is computed: one kernel for all shapes, whose grid strides over the tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ...config_error import require, require_integers
from ...problem import Problem

THREADS = 512
CTAS_PER_SM = 4
CHUNK = 256  # channels that a warp quantises at a time: 8 a lane; every hidden size is a multiple


@dataclass(frozen=True)
class PreDispatchConfig:
    """Compile-time choices of the pre-dispatch kernel; raises `ConfigError` where a field is out of range.

    num_sms  CTAs of the grid
    """

    problem: Problem
    num_sms: int

    def __post_init__(self) -> None:
        require_integers(self, "num_sms")
        require(self.num_sms >= 1, "num_sms", self.num_sms, "positive")

    @classmethod
    def choose(cls, problem: Problem, num_sms: int) -> PreDispatchConfig:
        """A grid that fills `num_sms` SMs."""
        return cls(problem, num_sms * CTAS_PER_SM)

    @property
    def arch(self) -> str:
        return {"fp8xfp4": "sm_100a", "fp8xfp8": "sm_90a"}[self.problem.recipe]

    @property
    def cluster(self) -> int:
        return 1

    @property
    def num_threads(self) -> int:
        return THREADS

    @property
    def lanes_per_scale(self) -> int:
        """Lanes whose 8 channels share a scale."""
        return {"fp8xfp4": 4, "fp8xfp8": 16}[self.problem.recipe]
