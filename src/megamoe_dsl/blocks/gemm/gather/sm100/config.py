"""How a GEMM gathers its rows on SM100: what a GEMM of CTA pairs has, and warps that gather."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from .....config_error import ConfigError, require, require_integers
from .....hardware.cta_pair import CLUSTER
from .....hardware.tmem import TMEM_COLUMNS
from .....schedule.tile_sums import MOST_TILES
from .....target import Target
from ....sm100.tmem_plan import ACCUMULATORS, Sm100TmemPlan
from ...problem import PACKED
from ...sm100.config import LARGEST, LOADER_WARPS, PASS_ROWS, ROWS, Sm100GemmConfig, block_ks
from ..problem import GatherGemmProblem
from .choose import CANDIDATES, fastest
from .smem_plan import PairGatherSmemPlan
from .threads import GATHER_WARPS


@dataclass(frozen=True)
class Sm100GatherConfig(Sm100GemmConfig):
    """A `Sm100GemmConfig` of a `GatherGemmProblem`.  Raises `ConfigError` where a field is out of range.

    block_m    32, 64, 128, 192, 256; tensor memory holds the sums of two tiles at a time, or of one where they are large
    consumers  1; or 2, whose sums share the rows of A that are gathered: a tile then has 512 rows of B, and each of the two 256, and a
               warpgroup of the epilogue
    pairs      CTA pairs of a cluster: 1; or 2 with rows of B of their own, each of which gathers half of the rows of A for both
    trace      warps leave stamps of what they were doing (layouts/activity.py); for profiles
    """

    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4", "bf16xbf16")

    problem: GatherGemmProblem
    consumers: int = 1
    pairs: int = 1
    trace: bool = False

    def __post_init__(self) -> None:
        require(isinstance(self.problem, GatherGemmProblem), "problem", self.problem, "a GatherGemmProblem")
        require_integers(self, "block_m", "consumers", "pairs")
        require(self.consumers in (1, 2), "consumers", self.consumers, "1 or 2")
        require(self.pairs in (1, 2), "pairs", self.pairs, "1 or 2")
        require(isinstance(self.trace, bool), "trace", self.trace, "True or False")
        require(self.block_m in self.block_ms, "block_m", self.block_m, f"one of {list(self.block_ms)}")
        most = max(rows for rows in self.block_ms if self._tmem(rows, 1).fits)
        held = f"at most {most} with consumers = {self.consumers}: tensor memory has {TMEM_COLUMNS} columns, also for scales"
        require(self.block_m <= most, "block_m", self.block_m, held)
        groups = self.consumers == 1 or self.epilogue_warpgroups == self.consumers
        require(groups, "epilogue_warpgroups", self.epilogue_warpgroups, "2 with consumers = 2, one for each")
        of_tile = f"consumers = {self.consumers} and pairs = {self.pairs}"
        whole = not self.problem.gate_up or self.problem.n % self.block_n == 0
        require(whole, "problem.n", self.problem.n, f"a multiple of {self.block_n} for gate and up with {of_tile}")
        super().__post_init__()

    @classmethod
    def choose(cls, problem: GatherGemmProblem, target: Target, rows: int, **fields: Any) -> Self:  # type: ignore[override]
        """The tile that an estimate finds best for so many rows of all experts together; `fields` replace what is chosen.  Raises
        `ConfigError` also for more rows than the chosen tile can have."""
        problem.check_rows(rows)
        common = {"num_sms": target.num_sms, "block_k": max(block_ks(problem)), **fields}
        possible = [one for tile in CANDIDATES if (one := cls._made(problem, {**tile, **common})) is not None]
        chosen = fastest(possible, rows) if possible else cls(problem, **{**CANDIDATES[0], **common})
        chosen.check_rows(rows)
        return chosen

    @classmethod
    def _made(cls, problem: GatherGemmProblem, fields: dict[str, Any]) -> Self | None:
        """A configuration, or nothing where a field is refused."""
        try:
            return cls(problem, **fields)
        except ConfigError:
            return None

    def check_rows(self, rows: int) -> None:
        """Raises `ConfigError` for so many rows of all experts that sums of their row blocks could leave 16 bits."""
        most = (MOST_TILES - self.num_experts) * self.block_m
        require(rows <= most, "m", rows, f"at most {most} with block_m = {self.block_m}, whose row blocks are counted in 16 bits")

    @property
    def kinds(self) -> tuple[str, ...]:
        return (PACKED,)

    @property
    def block_ms(self) -> tuple[int, ...]:
        """Rows of A that a tile can have, with sums of two or of one in tensor memory."""
        return (*ROWS, LARGEST)

    @property
    def cluster(self) -> int:
        """CTAs of all pairs that have the same rows of A."""
        return CLUSTER * self.pairs

    @property
    def block_n(self) -> int:
        """Rows of B of a tile."""
        return super().block_n * self.pairs

    @property
    def first_epilogue_warp(self) -> int:
        """Those before it load, multiply, schedule and gather."""
        return LOADER_WARPS + GATHER_WARPS

    @property
    def num_threads(self) -> int:
        return 32 * (self.first_epilogue_warp + self.epilogue_warps)

    @property
    def staged(self) -> bool:
        """Whether D passes through SMEM: it always does."""
        return True

    @property
    def shared_rows(self) -> str:
        """Which rows of a stage two consumers share: of A; empty for one."""
        return "A" if self.consumers > 1 else ""

    @property
    def row_loader(self) -> str:
        """Who loads rows of A, in words."""
        rows = "gather4, four rows at a time" if self.problem.gathers else "TMA"
        rows += f", for {self.pairs} pairs" if self.pairs > 1 else ""
        return f"{rows}; {GATHER_WARPS} warps copy their scales, a word at a time" if self.problem.formats.scaled else rows

    @property
    def tmem(self) -> Sm100TmemPlan:
        """Columns of a CTA's tensor memory."""
        two = self._tmem(self.block_m, ACCUMULATORS)
        return two if two.fits else replace(two, accumulators=1)

    def _tmem(self, block_m: int, accumulators: int) -> Sm100TmemPlan:
        return Sm100TmemPlan(block_m, self.consumers, accumulators, self.problem.formats.scaled)

    def smem_plan(self, num_stages: int) -> PairGatherSmemPlan:
        problem = self.problem
        pair = (self.stage, num_stages, self.table_entries, PASS_ROWS, self.epilogue_warpgroups, self.tmem.accumulators)
        rows = (problem.gathers, problem.places_rows, bool(problem.gate_up), self.pairs)
        return PairGatherSmemPlan(*pair, *rows, self.num_threads // 32 if self.trace else 0, problem.formats.scaled)
