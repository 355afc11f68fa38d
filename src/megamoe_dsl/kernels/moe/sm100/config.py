"""How a problem is computed on SM100.

Sources: article 3.2.1 (tiers, pool, waves, SMEM); pull request 44 of sgl-project's DeepGEMM (packed activations, BLOCK_K per tile).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar, Self

from ....arch import SM100, Arch
from ....blocks.sm100.pair_stage import PairStage, block_ks, check_k, k_block_of, mma_of
from ....hardware.cta_pair import BLOCK_N, CLUSTER, TmemPlan
from ....hardware.operand_tile import SF_ATOM_ROWS, pool_sf_row
from ....layouts.arith import Int, align
from ....problem import Problem
from ..config import MegaMoeConfig, PerRole
from ..layouts.smem_plan import DISPATCH_WARPS, LOADER_WARPS, WARPS_PER_GROUP
from ..layouts.symmetric import is_ring, smallest_block_m, whole_pool
from .memory_plan import TABLE_MAPS, linear_maps, output_maps, smem_plan

BLOCK_M = (16, 32, 64, 96, 128, 192)


def store_block_ms(problem: Problem) -> tuple[int, ...]:
    """Tokens that a pass of the epilogue can have: E2M1 outputs are put together from 32."""
    return (32,) if problem.formats.packs_activations else (16, 32)


@dataclass(frozen=True)
class Sm100Config(MegaMoeConfig):
    """Compile-time choices of the SM100 kernel; raises `ConfigError` where a field is out of range."""

    arch: ClassVar[Arch] = SM100
    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4", "bf16xbf16")
    group_m: ClassVar[int] = 1  # an L2 of 126 MB holds an expert's weights
    table_maps: ClassVar[tuple[str, ...]] = TABLE_MAPS
    smem_plan, linear_maps, output_maps = smem_plan, linear_maps, output_maps
    cluster: ClassVar[int] = CLUSTER
    blocks_per_fetch: ClassVar[int] = 1
    k_block = property(k_block_of)
    mma = property(mma_of)
    alternating_groups = property(attrgetter("epilogue_warpgroups"))

    store_block_m: int = field(kw_only=True)  # tokens of one epilogue pass
    epilogue_warpgroups: int = field(kw_only=True)  # 1 or 2; two take alternate tiles
    # K of a stage: 128, for E2M1 activations also 256, for BF16 64; all give the same bits; 0 chooses the least
    block_k: int = field(kw_only=True, default=0)

    def check_fields(self) -> None:
        """An even grid, a whole pool, and epilogue passes that divide a tile.  Raises `ConfigError`."""
        least = whole_pool(self.problem)
        self.require("pool_rows", not is_ring(self.problem, self.pool_rows), f"None, or at least {least}, on sm_100a")
        passes = store_block_ms(self.problem)
        whole = self.store_block_m in passes and self.block_m % self.store_block_m == 0
        self.require("store_block_m", whole, f"{' or '.join(map(str, passes))} and a divisor of block_m = {self.block_m}")
        check_k(self, self.block_ks, self.problem.recipe)
        self.require_any("epilogue_warpgroups", (1, 2))
        self.check_clusters()

    block_ks = property(lambda self: block_ks(self.problem.formats, self.problem.hidden, self.problem.intermediate))

    @classmethod
    def tiles_of(cls, problem: Problem) -> list[int]:
        """Tiles of E2M1 activations begin with 32 tokens."""
        return [m for m in BLOCK_M if m >= smallest_block_m(SM100, problem.formats)]

    @property
    def siblings(self) -> list[Self]:
        """Other passes of the epilogue, numbers of its warpgroups and K of a stage, each with the deepest ring."""
        passes = [{"store_block_m": n} for n in store_block_ms(self.problem) if self.block_m % n == 0]
        others = [*passes, *({"epilogue_warpgroups": n} for n in (1, 2)), *({"block_k": n} for n in self.block_ks)]
        return [self.replace(**one, num_stages=0) for one in others]

    # --- threads and registers
    warps = property(lambda self: PerRole(DISPATCH_WARPS, LOADER_WARPS, self.epilogue_warpgroups * WARPS_PER_GROUP))

    @property
    def registers(self) -> dict[str, int]:
        """More than 64 local experts need longer scheduler state in the non-epilogue roles (MEGAMOE_FACTS, Tiers)."""
        counts = (48, 48, 208) if self.problem.experts_per_rank <= 64 else (96, 88, 160)
        return dict(zip(("dispatch", "loader", "epilogue"), counts, strict=True))

    # --- tiles
    fc2_parts = property(lambda self: CLUSTER * self.fc1_n_blocks)  # one per 64 intermediate channels, which one CTA of a pair stores
    sf_block_m = property(lambda self: align(self.block_m, SF_ATOM_ROWS))  # scale words of a pool block: UTCCP moves atoms of 128 rows

    def sf_row(self, pool_block: Int, row_in_block: Int) -> Int:
        """Word index of a pool row in the M-major scale buffers, `sf_block_m` words per pool block."""
        return pool_sf_row(pool_block, row_in_block, self.sf_block_m)

    @property
    def facts(self) -> list[tuple[str, object]]:
        tile = f"256 weight rows x {self.block_m} tokens x {self.block_k} channels over two CTAs"
        return [("tile", tile), ("epilogue", f"{self.epilogue_warps} warps, {self.store_block_m} tokens a pass")]

    # --- plans
    pair_stage = property(lambda self: PairStage(self.block_m, self.k_block))
    # a CTA's 64 outputs of Linear1 for a token, and those of one pass of the epilogue: [store_block_m][64]
    fc1_row_bytes = property(lambda self: self.problem.formats.activations.row_bytes(BLOCK_N // 2))
    fc1_tile_bytes = property(lambda self: self.store_block_m * self.fc1_row_bytes)
    tmem = property(lambda self: TmemPlan(self.block_m, scaled=self.problem.formats.scaled))

    def of_stage(self, linear: bool) -> Self:
        return self.replace(lookahead=self.problem.experts_per_rank, num_stages=0, trace=False)
