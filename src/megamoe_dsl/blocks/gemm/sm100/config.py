"""How a GEMM is computed on SM100: a CTA pair multiplies 256 rows of B by up to 192 rows of A, 256 where operands have no scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from ....arch import SM100, Arch
from ....config_error import require, require_integers
from ....hardware.cta_pair import CLUSTER, PAIR_ROWS
from ....target import Target
from ...sm100.pair_config import PairConfig
from ...sm100.pair_stage import PairStage
from ...sm100.tmem_plan import Sm100TmemPlan
from ..base_config import BaseGemmConfig
from ..problem import BF16, CONTIGUOUS, DENSE, KINDS, MASKED, ROW_BLOCK, GemmProblem
from ..tile import WARPS_PER_GROUP
from .choose import choose_pair_fields
from .smem_plan import PairGemmSmemPlan

ROWS = (32, 64, 128, 192)
"""Of A: tiles begin at a multiple of 32 rows, as TMEM counts the scales of rows, and no tile of a dense problem needs more atoms of 128
scales than it has rows for."""
LARGEST = 256
"""Rows of A of a tile: the MMA has no more; sums of two such tiles leave tensor memory no columns for scales."""
PASS_ROWS = 32
LOADER_WARPS = 4
NUM_SMS = 148  # of a B200


@dataclass(frozen=True)
class Sm100GemmConfig(PairConfig, BaseGemmConfig):
    """Compile-time choices; raises `ConfigError` where a field is out of range.

    block_m              rows of A of a tile, the MMA's N: 32, 64, 128, 192; 256 of BF16
    num_sms              CTAs of the grid, even
    block_k              K of a stage: 128, or 256 of E2M1 rows, 64 of BF16; results have the same bits; 0 asks for the least
    epilogue_warpgroups  1, or 2 that share the passes of a tile
    group_m              row blocks that the order of tiles takes together
    dealt                tiles are dealt at run time, not in turn
    num_stages           depth of the TMA ring; 0 asks for the deepest that fits
    """

    arch: ClassVar[Arch] = SM100
    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4", "bf16xbf16")

    problem: GemmProblem
    block_m: int
    num_sms: int = NUM_SMS
    block_k: int = 0
    epilogue_warpgroups: int = 2
    group_m: int = 8
    dealt: bool = False
    num_stages: int = 0

    def __post_init__(self) -> None:
        self.check_problem()
        problem = self.problem
        kinds = f"one of {', '.join(self.kinds)} on {self.arch}, where scales of A come in atoms of {ROW_BLOCK} rows"
        require(problem.kind in self.kinds, "problem.kind", problem.kind, kinds)
        require_integers(self, "block_m", "num_sms", "block_k", "epilogue_warpgroups", "group_m", "num_stages")
        require(isinstance(self.dealt, bool), "dealt", self.dealt, "True or False")
        require(self.block_m in self.block_ms, "block_m", self.block_m, f"one of {list(self.block_ms)}")
        divides = problem.kind != CONTIGUOUS or ROW_BLOCK % self.block_m == 0
        require(divides, "block_m", self.block_m, f"a divisor of {ROW_BLOCK} for a {problem.kind} problem")
        depths = block_ks(problem)
        if self.block_k == 0:
            object.__setattr__(self, "block_k", min(depths))
        allowed = " or ".join(map(str, depths)) + f" for k = {problem.k} of {problem.recipe}"
        require(self.block_k in depths, "block_k", self.block_k, allowed)
        whole = self.num_sms >= self.cluster and self.num_sms % self.cluster == 0
        require(whole, "num_sms", self.num_sms, f"a positive multiple of {self.cluster}")
        require(self.epilogue_warpgroups in (1, 2), "epilogue_warpgroups", self.epilogue_warpgroups, "1 or 2")
        require(self.group_m >= 1, "group_m", self.group_m, "positive")
        self.check_stages("block_m")

    @classmethod
    def choose(cls, problem: GemmProblem, target: Target, rows: int, **fields: Any) -> Self:
        """The configuration for `rows` rows of A; `fields` replace what is chosen."""
        problem.check_rows(rows)
        tiles = [m for m in tile_rows(problem) if problem.kind != CONTIGUOUS or ROW_BLOCK % m == 0]
        chosen = choose_pair_fields(problem, target.num_sms // CLUSTER, rows, tiles)
        return cls(problem, **{"num_sms": target.num_sms, "block_k": max(block_ks(problem)), **chosen, **fields})

    def replace(self, **changes: Any) -> Self:
        """The same with other values of fields.  Raises `ConfigError`."""
        return replace(self, **changes)

    # --- tiles
    @property
    def kinds(self) -> tuple[str, ...]:
        return (DENSE, CONTIGUOUS, MASKED) if self.problem.formats.scaled else KINDS

    @property
    def block_ms(self) -> tuple[int, ...]:
        """Rows of A that a tile can have."""
        return tile_rows(self.problem)

    @property
    def block_n(self) -> int:
        """Rows of B of a tile."""
        return PAIR_ROWS * self.consumers

    @property
    def consumers(self) -> int:
        """Sums of a tile that share its rows of A, of 256 rows of B each."""
        return 1

    @property
    def n_blocks(self) -> int:
        return -(-self.problem.n // self.block_n)

    @property
    def k_blocks(self) -> int:
        return self.problem.k // self.block_k

    @property
    def staged(self) -> bool:
        """Whether D passes through SMEM: BF16 does, FP32 goes from registers to memory."""
        return self.problem.output == BF16

    # --- threads
    @property
    def epilogue_warps(self) -> int:
        return WARPS_PER_GROUP * self.epilogue_warpgroups

    @property
    def num_threads(self) -> int:
        return 32 * (LOADER_WARPS + self.epilogue_warps)

    # --- plans
    @property
    def stage(self) -> PairStage:
        """Operands and scales of a stage."""
        return PairStage(self.block_m, self.k_block, self.consumers)

    def smem_plan(self, num_stages: int) -> PairGemmSmemPlan:
        rows = PASS_ROWS if self.staged else 0
        return PairGemmSmemPlan(self.stage, num_stages, self.table_entries, rows, self.epilogue_warpgroups, self.tmem.accumulators)

    @property
    def tmem(self) -> Sm100TmemPlan:
        """Columns of a CTA's tensor memory."""
        return Sm100TmemPlan(self.block_m, scaled=self.problem.formats.scaled)


def block_ks(problem: GemmProblem) -> tuple[int, ...]:
    """K that a stage can have: a block of K; with E2M1 rows also two, of which K is then a multiple."""
    least = problem.k_block
    return (least, 2 * least) if problem.formats.packs_activations and problem.k % (2 * least) == 0 else (least,)


def tile_rows(problem: GemmProblem) -> tuple[int, ...]:
    """Of A, that a tile can have with sums of two in tensor memory."""
    return ROWS if problem.formats.scaled else (*ROWS, LARGEST)
