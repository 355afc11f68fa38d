"""How a GEMM gathers its rows on SM100: what a GEMM of CTA pairs has, and warps that gather."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ....config_error import require
from ....schedule.tile_sums import MOST_TILES
from ....target import Target
from ...gemm.problem import PACKED, GemmProblem
from ...gemm.sm100.config import LOADER_WARPS, PASS_ROWS, Sm100GemmConfig
from ..problem import GatherGemmProblem
from .smem_plan import PairGatherSmemPlan
from .threads import GATHER_WARPS


@dataclass(frozen=True)
class Sm100GatherConfig(Sm100GemmConfig):
    """A `Sm100GemmConfig` of a `GatherGemmProblem`.  Raises `ConfigError` where a field is out of range."""

    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8")
    kinds: ClassVar[tuple[str, ...]] = (PACKED,)

    problem: GatherGemmProblem

    def __post_init__(self) -> None:
        require(isinstance(self.problem, GatherGemmProblem), "problem", self.problem, "a GatherGemmProblem")
        require(not self.problem.preactivations, "problem.preactivations", True, "False on SM100")
        super().__post_init__()

    @classmethod
    def choose(cls, problem: GemmProblem, target: Target, rows: int, **fields: Any) -> Self:
        """As of a GEMM of pairs; raises `ConfigError` for more rows than the chosen tile can have."""
        chosen = super().choose(problem, target, rows, **fields)
        chosen.check_rows(rows)
        return chosen

    def check_rows(self, rows: int) -> None:
        """Raises `ConfigError` for so many rows of all experts that sums of their row blocks could leave 16 bits."""
        most = (MOST_TILES - self.num_experts) * self.block_m
        require(rows <= most, "m", rows, f"at most {most} with block_m = {self.block_m}, whose row blocks are counted in 16 bits")

    @property
    def first_epilogue_warp(self) -> int:
        """Those before it load, multiply, schedule and gather."""
        return LOADER_WARPS + GATHER_WARPS

    @property
    def num_threads(self) -> int:
        """Of a CTA."""
        return 32 * (self.first_epilogue_warp + self.epilogue_warps)

    @property
    def staged(self) -> bool:
        """Whether D passes through SMEM: it always does."""
        return True

    @property
    def row_loader(self) -> str:
        """Who loads rows of A, in words."""
        rows = "gather4, four rows at a time" if self.problem.gathers else "TMA"
        return f"{rows}; {GATHER_WARPS} warps copy their scales, a word at a time"

    def smem_plan(self, num_stages: int) -> PairGatherSmemPlan:
        """Of so many stages."""
        problem = self.problem
        pair = (self.stage, num_stages, self.table_entries, PASS_ROWS, self.epilogue_warpgroups)
        return PairGatherSmemPlan(*pair, problem.gathers, problem.places_rows, bool(problem.gate_up))
