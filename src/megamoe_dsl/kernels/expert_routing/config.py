"""How tokens are routed, and their results summed: grids of one CTA per SM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from ...arch import SM90, Arch
from ...config_error import require, require_integers
from ...layouts.region import U32, Field, Region
from ...target import Target
from .problem import RoutingProblem

WARPS = 32


@dataclass(frozen=True)
class RoutingConfig:
    """What both kernels have; raises `ConfigError` where a field is out of range.  `num_sms` are the CTAs of the grid."""

    arch: ClassVar[Arch] = SM90
    cluster: ClassVar[int] = 1
    num_threads: ClassVar[int] = 32 * WARPS
    least_sms: ClassVar[int] = 1

    problem: RoutingProblem
    num_sms: int

    def __post_init__(self) -> None:
        require(isinstance(self.problem, RoutingProblem), "problem", self.problem, "a RoutingProblem")
        require_integers(self, "num_sms")
        require(self.num_sms >= self.least_sms, "num_sms", self.num_sms, f"at least {self.least_sms}")

    @classmethod
    def choose(cls, problem: RoutingProblem, target: Target) -> Self:
        """A CTA for each of the target's SMs, whatever the number of tokens."""
        return cls(problem, target.num_sms)


@dataclass(frozen=True)
class RouteConfig(RoutingConfig):
    """The first CTA sorts, the others quantise."""

    least_sms = 2

    @cached_property
    def region(self) -> Region:
        """Shared memory: of each warp and expert, how many slots, then the row of the next; slots of 32 experts."""
        experts = self.problem.num_experts
        return Region.stack("smem", Field("counts", (WARPS, experts), U32, 16), Field("totals", (WARPS,), U32, 16))


@dataclass(frozen=True)
class SumConfig(RoutingConfig):
    """A warp takes 256 channels of a token at a time; a thread has registers for those of all its experts' rows."""

    num_threads = 512
