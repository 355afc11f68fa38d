"""How a GEMM gathers its rows on SM90: the tile and all that a GEMM's configuration says, in CTAs that work alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ....config_error import require
from ....integer import as_integer
from ....target import Target
from ..choose import burst_of, choose_fields
from ..config import GemmConfig, GemmRegisters
from ..tile import GROUP_ROWS
from .problem import GATE_FIRST, SORTED_PACKED, UP_FIRST, GatherGemmProblem
from .smem_plan import GatherSmemPlan

GATHER_WARPS = 2
"""Of a CTA; a warp has 8 lanes for the 128 bytes of a row."""


GATHERING = {1: GemmRegisters(56, 232), 2: GemmRegisters(56, 224)}
"""Registers where rows are gathered, by math warpgroups: a thread that gathers keeps up to 16 rows of A."""
MOST_ROWS = 128
GATE_UP_ROWS = 256
"""Rows of B of a tile of gate and up: 128 of each, the channels of a scale."""


@dataclass(frozen=True)
class GatherGemmConfig(GemmConfig):
    """A `GemmConfig` of a `GatherGemmProblem`.  Raises `ConfigError` where a field is out of range.

    trace  warps leave stamps of what they were doing (layouts/activity.py); for profiles
    """

    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp8", "bf16xbf16")
    loads_weights_first: ClassVar[bool] = False

    problem: GatherGemmProblem
    trace: bool = False

    def __post_init__(self) -> None:
        require(isinstance(self.problem, GatherGemmProblem), "problem", self.problem, "a GatherGemmProblem")
        rows = not self.problem.gathers or as_integer(self.block_m) in range(MOST_ROWS + 1)
        require(rows, "block_m", self.block_m, f"at most {MOST_ROWS} where rows are gathered")
        require(isinstance(self.trace, bool), "trace", self.trace, "True or False")
        super().__post_init__()
        if self.problem.gate_up:
            self._check_gate_up()
        require(self.cluster == 1, "cluster", self.cluster, "1: a CTA gathers its own rows")

    def _check_gate_up(self) -> None:
        """Gate and up of a row lie in one thread: a warpgroup has all columns of a tile of 128 channels."""
        require(self.block_n == GATE_UP_ROWS, "block_n", self.block_n, f"{GATE_UP_ROWS} for gate and up")
        whole = not self.swap_ab and not self.halves and self.block_m == GROUP_ROWS * self.warpgroups
        require(whole, "block_m", self.block_m, f"{GROUP_ROWS} for each warpgroup, without halves and swap_ab, for gate and up")

    @classmethod
    def choose(cls, problem: GatherGemmProblem, target: Target, rows: int, **fields: Any) -> Self:  # type: ignore[override]
        """The configuration for `rows` rows of all experts together: what the estimate of a packed GEMM says; `fields` replace
        what is chosen.

        What was measured on a GPU does not count: that was of pairs, and of rows that TMA loads."""
        problem.check_rows(rows)
        estimated = choose_fields(problem, Target(target.arch, target.num_sms), rows)
        if problem.gate_up:
            warpgroups = 1 if rows <= GROUP_ROWS * problem.num_groups else 2
            tile = {"block_m": GROUP_ROWS * warpgroups, "block_n": GATE_UP_ROWS, "warpgroups": warpgroups}
            estimated = {**tile, "dealt": True, "burst": burst_of(problem) if warpgroups == 1 else 1}
        return cls(problem, num_sms=target.num_sms, **{**estimated, **fields})

    @property
    def gather_warps(self) -> int:
        """Warps that gather rows; none where TMA loads them."""
        return GATHER_WARPS if self.problem.gathers else 0

    @property
    def scales_at_once(self) -> int:
        """K blocks of which a row's scales come with one copy; with swap_ab one: a thread reads scales of rows that follow one another."""
        return self.problem.scales_at_once if self.gather_warps and self.tile.scaled and not self.swap_ab else 1

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply what a stage holds: `warpgroups`, as SM100 calls those that have sums of their own."""
        return self.warpgroups

    @property
    def shared_rows(self) -> str:
        """Which rows of a stage two consumers share: of A, each with rows of B of its own, or of B; empty for one."""
        if self.consumers == 1:
            return ""
        return "A" if self.tile.shares_rows(False) else "B"

    @property
    def row_loader(self) -> str:
        """Who loads rows of A, in words."""
        return f"{self.gather_warps} warps gather them, 16 bytes a lane" if self.gather_warps else "TMA"

    @property
    def staged(self) -> bool:
        """Whether D passes through SMEM: it always does."""
        return True

    @property
    def idles(self) -> bool:
        """Where warpgroups have rows of their own, which those of a last tile of an expert need not fill."""
        return self.problem.gate_up != "" and self.warpgroups > 1

    @property
    def boxes_of_warp(self) -> int:
        """Boxes of D that a warp has in SMEM: one of activated rows, which TMA does not read."""
        return 1 if self.problem.gate_up else self.boxes

    @property
    def weight_rows(self) -> int:
        """Rows of B that TMA loads at a time: of gate or of up, where they do not alternate."""
        return self.block_n // 2 if self.problem.gate_up in (GATE_FIRST, UP_FIRST) else self.block_n

    @property
    def registers(self) -> GemmRegisters:
        """Per thread, of each role."""
        return GATHERING[self.warpgroups] if self.problem.gathers else super().registers

    @property
    def any_row(self) -> bool:
        """Whether TMA may begin at any row of A."""
        return self.problem.source == SORTED_PACKED

    def smem_plan(self, num_stages: int) -> GatherSmemPlan:
        rows = (self.table_entries, self.boxes_of_warp, self.any_row, self.split_k)
        plan = (self.tile, num_stages, self.cluster, self.fetchers, *rows)
        trace_warps = self.num_threads // 32 if self.trace else 0
        return GatherSmemPlan(*plan, self.gather_warps, self.problem.places_rows, self.scales_at_once, trace_warps)
