"""What an architecture says of the GEMM of an expert-parallel kernel: its tiles, its threads and what it refuses.  On SM100 a CTA pair
multiplies 256 weight rows by up to 192 received rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from ....arch import SM90, SM100, Arch
from ....blocks.gemm.config import GemmConfig
from ....blocks.gemm.problem import GemmProblem
from ....blocks.gemm.sm100.config import ROWS, Sm100GemmConfig, block_ks
from ....hardware.cta_pair import CLUSTER, PAIR_ROWS
from ....hardware.operand_tile import BLOCK_K
from ....hardware.scale_factors import SF_ATOM_ROWS, utccp_row
from ....hardware.tmem import TmemPlan
from ....layouts.arith import Int
from ..config import RegisterBudget

MOST_COLUMNS = 128
"""Of a wgmma: before a role asks for registers of its own, 512 threads have 128 each, and ptxas assembles no instruction that names more;
sums of 128 columns take 64."""


class GemmPart(ABC):
    """An architecture's share of a configuration (config.py), which every method gets.

    block_ms, block_ns, clusters  what these fields may be
    defaults   values of fields that a configuration leaves at 0
    unused     fields that it has no use for: 0
    scale_rows rows whose scales are fetched together; 0 where a tile's are
    registers  per thread of each role; None where every role keeps what it begins with
    """

    arch: ClassVar[Arch]
    recipes: ClassVar[tuple[str, ...]]
    block_ms: ClassVar[tuple[int, ...]]
    block_ns: ClassVar[tuple[int, ...]]
    clusters: ClassVar[tuple[int, ...]]
    defaults: ClassVar[Mapping[str, int]]
    unused: ClassVar[tuple[str, ...]] = ()
    scale_rows: ClassVar[int] = 0
    registers: ClassVar[RegisterBudget | None] = None

    @abstractmethod
    def chosen(self, linear: GemmProblem, num_sms: int) -> dict[str, int]:
        """Fields that `choose` sets for a grid of `num_sms` CTAs."""

    @abstractmethod
    def gemm(self, config: Any, num_stages: int) -> Any:
        """The configuration of the grouped GEMM (blocks/gemm)."""

    @abstractmethod
    def math_warps(self, gemm: Any) -> int:
        """Warps that have sums of a tile."""

    @abstractmethod
    def tile_warps(self, config: Any) -> int:
        """Warps that store a part of one tile's results."""

    @abstractmethod
    def tile(self, config: Any) -> str:
        """Describes the tile in words, for tables."""

    def scale_row(self, row: Int) -> Int:
        """Where a row's scales lie among those of all rows."""
        return row

    def tmem(self, gemm: Any) -> TmemPlan | None:
        """The plan of tensor memory, where there is any."""
        return None


class WarpgroupGemm(GemmPart):
    """SM90: two warpgroups multiply a tile; two CTAs may share what they fetch."""

    arch = SM90
    recipes = ("fp8xfp8", "bf16xbf16")
    block_ms = (64, 128)
    block_ns = (64, 128, 256)
    clusters = (1, 2)
    defaults: ClassVar[Mapping[str, int]] = {"cluster": 1}
    unused = ("block_k", "epilogue_warpgroups")
    registers = RegisterBudget(dispatch=48, loader=32, epilogue=216)

    def chosen(self, linear: GemmProblem, num_sms: int) -> dict[str, int]:
        """Pairs of CTAs where the grid has an even number of them."""
        return {"num_sms": num_sms, "cluster": 1 if num_sms % 2 else 2}

    def gemm(self, config: Any, num_stages: int) -> GemmConfig:
        """The GEMM with two warpgroups, whose wgmmas are narrow enough for a CTA that has communication warps too."""
        return GemmConfig(
            config.gemm_problem,
            config.block_m,
            config.block_n,
            config.num_sms,
            warpgroups=2,
            cluster=config.cluster,
            dynamic_schedule=True,
            group_m=config.group_m,
            half_tiles=config.block_m == max(self.block_ms),
            num_stages=num_stages,
            most_columns=MOST_COLUMNS,
        )

    def math_warps(self, gemm: GemmConfig) -> int:
        return gemm.math_warps

    def tile_warps(self, config: Any) -> int:
        count: int = config.math_warps
        return count

    def tile(self, config: Any) -> str:
        return f"{config.block_m} x {config.block_n} x {config.gemm_problem.k_block} on {config.gemm.warpgroups} warpgroups"


class PairGemm(GemmPart):
    """SM100: one thread of a pair multiplies, epilogue warps of both CTAs have the sums."""

    arch = SM100
    recipes = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8")
    block_ms = ROWS
    block_ns = (PAIR_ROWS,)
    clusters = (CLUSTER,)
    defaults: ClassVar[Mapping[str, int]] = {"cluster": CLUSTER, "block_k": BLOCK_K, "epilogue_warpgroups": 2}
    scale_rows = SF_ATOM_ROWS

    def chosen(self, linear: GemmProblem, num_sms: int) -> dict[str, int]:
        """The largest K of a stage."""
        return {"num_sms": num_sms, "block_k": max(block_ks(linear))}

    def gemm(self, config: Any, num_stages: int) -> Sm100GemmConfig:
        tile = (config.block_m, config.num_sms, config.block_k, config.epilogue_warpgroups)
        return Sm100GemmConfig(config.gemm_problem, *tile, group_m=config.group_m, dynamic_schedule=True, num_stages=num_stages)

    def math_warps(self, gemm: Sm100GemmConfig) -> int:
        return gemm.epilogue_warps

    def tile_warps(self, config: Any) -> int:
        count: int = CLUSTER * config.math_warps
        return count

    def tile(self, config: Any) -> str:
        return f"{config.block_n} weight rows x {config.block_m} rows x {config.block_k} over two CTAs"

    def scale_row(self, row: Int) -> Int:
        """The order in which `tcgen05.cp` takes scales."""
        return utccp_row(row)

    def tmem(self, gemm: Sm100GemmConfig) -> TmemPlan:
        return gemm.tmem
