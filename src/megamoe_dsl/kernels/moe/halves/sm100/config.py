"""How the two halves of a layer are computed on SM100: a CTA pair multiplies 256 weight rows by up to 192 received rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .....arch import SM100, Arch
from .....blocks.gemm.sm100.config import ROWS, Sm100GemmConfig, block_ks
from .....config_error import require
from .....hardware.cta_pair import CLUSTER, PAIR_ROWS
from .....hardware.operand_tile import BLOCK_K
from .....hardware.scale_factors import SF_ATOM_ROWS, utccp_row
from .....hardware.tmem import TmemPlan
from .....layouts.arith import Int
from .....problem import Problem
from .....target import Target
from ..config import DispatchGemmConfig, EpConfig, GemmCombineConfig


@dataclass(frozen=True)
class Sm100EpConfig(EpConfig):
    """What both kernels have in common; fields that `EpConfig` does not have are those of `Sm100GemmConfig`.

    block_n  the pair's 256 weight rows
    cluster  the pair
    """

    arch: ClassVar[Arch] = SM100
    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8")
    tiles: ClassVar[tuple[int, ...]] = ROWS
    columns: ClassVar[tuple[int, ...]] = (PAIR_ROWS,)
    clusters: ClassVar[tuple[int, ...]] = (CLUSTER,)

    cluster: int = CLUSTER
    block_k: int = BLOCK_K
    epilogue_warpgroups: int = 2

    @classmethod
    def choose(cls, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> Self:
        found = super().choose(problem, target, num_tokens, **{"cluster": CLUSTER, **fields})
        return (
            found
            if "block_k" in fields
            else found.replace(block_k=max(block_ks(found.gemm_problem)), num_stages=fields.get("num_stages", 0))
        )

    def _gemm(self, num_stages: int) -> Sm100GemmConfig:
        tile = (self.block_m, self.num_sms, self.block_k, self.epilogue_warpgroups)
        return Sm100GemmConfig(self.gemm_problem, *tile, group_m=self.group_m, dealt=True, num_stages=num_stages)

    def scale_row(self, row: Int) -> Int:
        """In the order in which `tcgen05.cp` takes them."""
        return utccp_row(row)

    def _math_warps(self, gemm: Sm100GemmConfig) -> int:
        return gemm.epilogue_warps  # one thread of a pair multiplies

    @property
    def register_total(self) -> int:
        """As many as a thread begins with, for all roles."""
        return self.arch.registers // self.num_threads // 8 * 8 * self.num_threads

    @property
    def tmem(self) -> TmemPlan:
        """Columns of a CTA's tensor memory."""
        return self.gemm.tmem


@dataclass(frozen=True)
class Sm100DispatchGemmConfig(Sm100EpConfig, DispatchGemmConfig):
    """A `DispatchGemmConfig` of pairs.  Raises `ConfigError` where a tile has fewer rows than its scales come in, and does not wait for all
    of its expert, or more."""

    def check_fields(self) -> None:
        super().check_fields()
        most = f"at most {SF_ATOM_ROWS}: an expert's rows begin at a multiple of it, and those after them may be on their way"
        require(self.block_m <= SF_ATOM_ROWS, "block_m", self.block_m, most)
        whole = f"False, or block_m = {SF_ATOM_ROWS}: scales of {SF_ATOM_ROWS} rows are fetched together"
        require(not self.block_wise or self.block_m == SF_ATOM_ROWS, "block_wise", self.block_wise, whole)


@dataclass(frozen=True)
class Sm100GemmCombineConfig(Sm100EpConfig, GemmCombineConfig):
    """A `GemmCombineConfig` of pairs.  Raises `ConfigError` for tiles that could not be told apart by the 128 rows that they are of."""

    def check_fields(self) -> None:
        super().check_fields()
        whole = self.interleaved or SF_ATOM_ROWS % self.block_m == 0
        require(whole, "block_m", self.block_m, f"a divisor of {SF_ATOM_ROWS} where tiles of a block of rows are counted")

    @property
    def tile_warps(self) -> int:
        return self.cluster * self.math_warps
