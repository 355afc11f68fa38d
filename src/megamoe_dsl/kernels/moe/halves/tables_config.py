"""How the routing tables of a rank are made: one CTA, whatever the number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from ....arch import ARCHES, SM90, Arch
from ....config_error import require
from ....layouts.region import U32, Field, MBarrier, Region
from ....problem import Problem
from .config import DispatchGemmConfig
from .layouts.symmetric import EpLaunch, Kept

WARPS = 32
LANES = 32


@dataclass(frozen=True)
class TablesPlan:
    """Shared memory.  rows, pulls: of each warp and expert, or list, how many, then where the next one goes; sums: of the warps; starts: of
    each expert."""

    experts: int
    barriers: ClassVar[tuple[MBarrier, ...]] = ()

    @cached_property
    def region(self) -> Region:
        counts = (WARPS, self.experts)
        words = {"rows": counts, "pulls": counts, "sums": (WARPS,), "starts": (self.experts,)}
        return Region.stack("smem", *(Field(name, shape, U32, 16) for name, shape in words.items()))


@dataclass(frozen=True)
class RoutingTablesConfig:
    """Compile-time choices of the kernel; raises `ConfigError` where a field is out of range.

    token_saving, token_sorting  as in the `DispatchGemmConfig` of the dispatch that reads the tables
    """

    cluster: ClassVar[int] = 1
    num_sms: ClassVar[int] = 1
    launch: ClassVar[EpLaunch] = EpLaunch.TABLES
    keeps: ClassVar[Kept] = Kept.NOTHING
    num_threads: ClassVar[int] = LANES * WARPS

    problem: Problem
    token_saving: bool = True
    token_sorting: bool = True
    arch_name: str = SM90.name

    def __post_init__(self) -> None:
        require(isinstance(self.problem, Problem), "problem", self.problem, "a Problem")
        for name in ("token_saving", "token_sorting"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        require(self.arch_name in ARCHES, "arch_name", self.arch_name, " or ".join(ARCHES))
        p = self.problem
        most = self.num_threads
        while TablesPlan(most).region.size > self.arch.smem_bytes:
            most -= 1
        require(
            p.num_experts <= most, "problem.num_experts", p.num_experts, f"at most {most}: each has a thread, and counters of all warps"
        )

    @classmethod
    def of(cls, dispatch: DispatchGemmConfig) -> Self:
        """What makes the tables that such a dispatch reads."""
        return cls(dispatch.problem, dispatch.token_saving, dispatch.token_sorting, dispatch.arch_name)

    @property
    def arch(self) -> Arch:
        return ARCHES[self.arch_name]

    @property
    def tokens_at_a_time(self) -> int:
        """Tokens that a warp sorts at a time, with a lane for each of their slots."""
        return LANES // self.problem.topk

    @property
    def smem(self) -> TablesPlan:
        return TablesPlan(self.problem.num_experts)
