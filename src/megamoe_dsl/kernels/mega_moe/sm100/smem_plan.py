"""Shared memory of one CTA (article 3.2.1.4): what is live while tiles are computed, what replaces it during combine, what stays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ....hardware.scale_factors import SF_ATOM_BYTES
from ....layouts.arith import align
from ....layouts.mbarrier import MBarrier
from ....layouts.region import U8, U32, U64, Field, Region
from ..layouts.combine_plan import CombinePlan
from ..layouts.deepest_ring import deepest_ring
from ..layouts.tile import BLOCK_K, DISPATCH_WARPS
from .barriers import barrier_table
from .tile import BLOCK_N

OPERAND_ALIGNMENT = 1024  # of SW128 operands: eight rows of 128 bytes
FC1_STORE_STAGES = 2


@dataclass(frozen=True)
class Sm100SmemPlan:
    """Byte plan of a CTA's SMEM; `region` has every field.

    main     expert_count u32[E], pull rows, epilogue tiles (Linear1: two E4M3 stages, Linear2: one BF16 tile), the TMA ring
    combine  per epilogue warp its slots (kernels/mega_moe/layouts/combine_plan.py); takes the place of `main`
    tail     scale exchange, per-expert table, mbarriers, TMEM address: always live
    """

    num_experts: int
    experts_per_rank: int
    hidden: int
    topk: int
    block_m: int
    store_block_m: int
    epilogue_warpgroups: int
    num_stages: int

    @property
    def epilogue_warps(self) -> int:
        return 4 * self.epilogue_warpgroups

    @property
    def weight_bytes(self) -> int:
        """Unpacked E2M1: 16 values take 16 bytes."""
        return BLOCK_N * BLOCK_K

    @property
    def token_bytes(self) -> int:
        return align(self.block_m // 2 * BLOCK_K, OPERAND_ALIGNMENT)

    @property
    def sfa_atoms(self) -> int:
        """512-byte atoms of token scales: one per 128 rows."""
        return align(self.block_m, 128) // 128

    @property
    def weight_transaction(self) -> int:
        """Bytes TMA counts for one CTA's weights and scales: packed nibbles, half the footprint."""
        return BLOCK_N * BLOCK_K // 2 + SF_ATOM_BYTES

    @property
    def token_transaction(self) -> int:
        return self.block_m // 2 * BLOCK_K + self.sfa_atoms * SF_ATOM_BYTES

    @property
    def fc1_tile_bytes(self) -> int:
        """One pass of the Linear1 epilogue: E4M3 [store_block_m][64]."""
        return self.store_block_m * BLOCK_N // 2

    @property
    def fc2_tile_bytes(self) -> int:
        """One pass of the Linear2 epilogue: BF16 [store_block_m][128] as two halves of 128-byte rows."""
        return self.store_block_m * BLOCK_N * 2

    @property
    def cd_bytes(self) -> int:
        return align(max(FC1_STORE_STAGES * self.fc1_tile_bytes, self.fc2_tile_bytes), OPERAND_ALIGNMENT)

    @property
    def pull_chunk(self) -> int:
        """Bytes of a token row that one bulk copy moves."""
        return self.hidden

    @property
    def pull_slots(self) -> int:
        return 1

    @property
    def combine(self) -> CombinePlan:
        return CombinePlan(self.hidden, self.topk, self.epilogue_warps)

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        return barrier_table(num_stages=self.num_stages, dispatch_warps=DISPATCH_WARPS, epilogue_warps=self.epilogue_warps)

    @cached_property
    def region(self) -> Region:
        stages = self.num_stages
        main = Region.stack(
            "main",
            Field("weights", (stages, self.weight_bytes), U8, OPERAND_ALIGNMENT),
            Field("tokens", (stages, self.token_bytes), U8, OPERAND_ALIGNMENT),
            Field("cd", (self.epilogue_warpgroups, self.cd_bytes), U8, OPERAND_ALIGNMENT),
            Field("sfb", (stages, SF_ATOM_BYTES), U8, SF_ATOM_BYTES),
            Field("sfa", (stages, self.sfa_atoms * SF_ATOM_BYTES), U8, SF_ATOM_BYTES),
            Field("pull", (DISPATCH_WARPS, self.pull_slots, self.pull_chunk), U8, 128),
            Field("expert_count", (self.num_experts,), U32),
        )
        combine = Region.stack(
            "combine", Field("combine_slots", (self.epilogue_warps, self.combine.slots, self.combine.chunk_bytes), U8, 128)
        )
        tail = Region.stack(
            "tail",
            Field("amax", (self.epilogue_warpgroups, 4, self.store_block_m), U32, 16),
            Field("expert_table", (self.experts_per_rank + 1, 2), U32, 8),
            *(Field(f"{b.name}_barrier", (b.count,), U64) for b in self.barriers),
            Field("tmem_address", (1,), U32),
        )
        return Region.stack("smem", Region.overlay("phase", main=main, combine=combine), tail)

    @property
    def num_bytes(self) -> int:
        return self.region.size

    def max_stages(self, capacity: int) -> int:
        """Deepest ring that fits; 0 when not even one stage does."""
        return deepest_ring(self, capacity)
