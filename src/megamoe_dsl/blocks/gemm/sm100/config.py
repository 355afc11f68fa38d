"""How a GEMM is computed on SM100: a CTA pair multiplies 256 rows of B by up to 192 rows of A, 256 where operands have no scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, cast

from ....arch import SM100, Arch
from ....config_error import require
from ....hardware.cta_pair import ACCUMULATORS, CLUSTER, PAIR_ROWS, TMEM_COLUMNS, TmemPlan
from ...sm100.epilogue_tile import PASS_WARPGROUPS
from ...sm100.pair_stage import PairStage, block_ks, check_k, k_block_of, mma_of
from ..base_config import BaseGemmConfig
from ..epilogue import GradientPasses, ScatterGateUp, ScatterPasses, StorePasses
from ..problem import ALIGNED, CONTIGUOUS, DENSE, F32, LEFT, MASKED, PACKED, ROW_BLOCK, GemmProblem, VarlenKProblem
from ..rows import BroughtRows, PairColumns, PairRows, PairSummedRows
from ..smem_plan import pair_gemm_plan
from ..tile import MOST_TILES, WARPS_PER_GROUP
from ..weights import PairGateUpWeights, PairSortedColumns, PairSummedColumns, PairTransposedWeights, PairWeights

ROWS = (32, 64, 128, 192)
"""Of A: tiles begin at a multiple of 32 rows, as TMEM counts the scales of rows, and no tile of a dense problem needs more atoms of 128
scales than it has rows for."""
LARGEST = 256
"""Rows of A of a tile: the MMA has no more; sums of two such tiles leave tensor memory no columns for scales."""
COLUMNS = (128, 256)  # of an MN-major side, of which each CTA has whole boxes of 64
LOADER_WARPS = 4
NUM_SMS = 148  # of a B200


@dataclass(frozen=True)
class Sm100GemmConfig(BaseGemmConfig):
    """Compile-time choices; raises `ConfigError` where a field is out of range."""

    arch: ClassVar[Arch] = SM100
    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4", "bf16xbf16")
    smem_plan = pair_gemm_plan
    blocks_per_fetch: ClassVar[int] = 1
    k_block, mma = property(k_block_of), property(mma_of)

    problem: GemmProblem
    block_m: int  # rows of A in a tile, the MMA's N: 32, 64, 128 or 192; with BF16, or in gather_gemm, also 256
    num_sms: int = NUM_SMS  # CTAs of the grid, even
    block_k: int = 0  # K of a stage: 128, for E2M1 also 256, for BF16 64; all give the same bits; 0 chooses the least
    group_m: int = 8  # row blocks of a group in the grouped tile order
    dynamic_schedule: bool = False  # tiles are scheduled at run time; otherwise CTAs take them round-robin
    num_stages: int = 0  # depth of the TMA ring; 0 chooses the deepest that fits
    consumers: int = 1  # in gather_gemm: 1, or 2 that share the gathered rows of A; a tile then has 512 rows of B, 256 for each
    pairs: int = 1  # in gather_gemm, CTA pairs of a cluster: 1, or 2 that each gather half of the rows of A for both
    trace: bool = False  # warps record time stamps for profiles (layouts/records.py)

    def __post_init__(self) -> None:
        self.check_problem()
        problem = self.problem
        plain = (DENSE, CONTIGUOUS, MASKED, ALIGNED, *(() if problem.formats.scaled else (PACKED,)))
        kinds = plain if not problem.of_experts else (PACKED, ALIGNED) if problem.sums_rows else (PACKED,)
        allowed = f"one of {', '.join(kinds)} on {self.arch}, where scales of A come in atoms of {ROW_BLOCK} rows"
        self.require("problem.kind", problem.kind in kinds, allowed)
        for field in ("consumers", "pairs"):
            self.only_where(field, self.brings_rows, "but over the rows of experts")
            self.require_any(field, (1, 2))
        self.require("block_m", self.block_m in self.block_ms, f"one of {list(self.block_ms)}")
        whole = problem.sums_rows or problem.k % problem.k_block == 0
        self.require("problem.k", whole, f"a multiple of {problem.k_block} on {self.arch}")
        self.require("problem.biases", not problem.biases, f"empty on {self.arch}")
        check_k(self, block_ks(problem.formats, problem.k), f"k = {problem.k} of {problem.recipe}")
        self.check_grid()
        most = max(rows for rows in self.block_ms if self._tmem(rows, 1).fits)
        held = f"at most {most} with consumers = {self.consumers}: tensor memory has {TMEM_COLUMNS} columns, also for scales"
        self.require("block_m", self.block_m <= most, held)
        self.epilogue.check(self)
        self.check_stages("block_m")

    def check_rows(self, rows: int) -> None:
        """Raises `ConfigError` for so many rows of all experts that sums of their row blocks could leave 16 bits."""
        most = (MOST_TILES - self.num_experts) * self.block_m
        fits = not self.brings_rows or rows <= most
        require(fits, "m", rows, f"at most {most} with block_m = {self.block_m}, whose row blocks are counted in 16 bits")

    # --- tiles
    brings_rows = property(lambda self: self.problem.of_experts and not self.problem.sums_rows)
    tile_rows = property(attrgetter("problem.n"))
    tile_columns = property(lambda self: self.problem.d_columns if self.problem.sums_rows else self.problem.n)

    @property
    def block_ms(self) -> tuple[int, ...]:
        if self.rows.mn_major:
            return COLUMNS
        return (*ROWS, LARGEST) if self.brings_rows else tile_rows(self.problem)

    cluster = property(lambda self: CLUSTER * self.pairs)
    block_n = property(lambda self: PAIR_ROWS * self.consumers * self.pairs)
    k_blocks = property(lambda self: self.problem.k // self.block_k)

    # --- parts
    @property
    def rows(self) -> PairRows | BroughtRows:
        problem = self.problem
        if problem.sums_rows and problem.formats.scaled:
            return PairSummedRows()
        if problem.sums_rows:
            return PairColumns(cast(VarlenKProblem, problem).gathered == LEFT)
        return BroughtRows(problem.gathers, problem.formats.scaled, self.pairs) if problem.of_experts else PairRows()

    @property
    def weights(self) -> PairWeights:
        if self.problem.sums_rows and self.problem.formats.scaled:
            return PairSummedColumns()
        if self.problem.sums_rows:
            return PairSortedColumns(self.problem.transposes)
        if self.problem.transposed_b:
            return PairTransposedWeights()
        return PairGateUpWeights(self.problem.gate_up) if self.problem.gate_up else PairWeights()

    @property
    def map_names(self) -> tuple[str, ...]:
        """D has a map where scatter4 takes its rows."""
        if self.rows.mn_major:
            return ("tokens", "weights", "sorted_rows")
        operands = ("tokens", "weights", "sfb") if self.brings_rows else ("tokens", "sfa", "weights", "sfb")
        return (*operands, *self.epilogue.map_names)

    @property
    def epilogue(self) -> StorePasses | ScatterPasses:
        problem: Any = self.problem
        if problem.gradient:
            return GradientPasses()
        if problem.gate_up:
            return ScatterGateUp(problem.hidden)
        return ScatterPasses() if self.brings_rows else StorePasses(staged=problem.output != F32)

    # --- threads
    epilogue_warps: ClassVar[int] = WARPS_PER_GROUP * PASS_WARPGROUPS
    first_epilogue_warp = property(lambda self: LOADER_WARPS + self.rows.warps)
    num_threads = property(lambda self: 32 * (self.first_epilogue_warp + self.epilogue_warps))

    # --- plans
    stage = property(lambda self: PairStage(self.block_m, self.k_block, self.consumers))

    @property
    def tmem(self) -> TmemPlan:
        two = self._tmem(self.block_m, ACCUMULATORS)
        return two if two.fits else replace(two, accumulators=1)

    def _tmem(self, block_m: int, accumulators: int) -> TmemPlan:
        return TmemPlan(block_m, self.consumers, accumulators, self.problem.formats.scaled)

    # --- what tables say
    @property
    def tile_facts(self) -> list[tuple[str, object]]:
        shape = f"{self.block_n} rows of B x {self.block_m} rows of A x {self.block_k} over two CTAs"
        return [("tile", shape), ("epilogue", f"{self.epilogue_warps} warps")]

    sharing = property(lambda self: "2, which share rows of A" if self.consumers > 1 else "1")


def tile_rows(problem: GemmProblem) -> tuple[int, ...]:
    """A tile can have these numbers of rows of A if tensor memory holds the sums of two tiles, and scales where formats have them."""
    return ROWS if problem.formats.scaled else (*ROWS, LARGEST)
