"""The GEMM of the expert-parallel kernels on SM100: a CTA pair multiplies 256 weight rows by up to 192 received rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .....arch import SM100
from .....blocks.gemm.problem import GemmProblem
from .....blocks.gemm.sm100.config import ROWS, Sm100GemmConfig, block_ks
from .....hardware.cta_pair import CLUSTER, PAIR_ROWS
from .....hardware.operand_tile import BLOCK_K
from .....hardware.scale_factors import SF_ATOM_ROWS, utccp_row
from .....hardware.tmem import TmemPlan
from .....layouts.arith import Int
from ..gemm_part import GemmPart


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
