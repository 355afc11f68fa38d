"""Shared memory of one CTA on SM100 (article 3.2.1.4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ....blocks.sm100.epilogue_tile import result_bytes
from ....blocks.sm100.pair_stage import PairStage
from ....blocks.sm100.tmem_plan import ACCUMULATORS
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....hardware.operand_tile import OPERAND_ALIGNMENT
from ....layouts.arith import align
from ....layouts.region import U8, U32, Field, MBarrier
from ..layouts.smem_plan import WARPS_PER_GROUP, SmemPlan

FC1_STORE_STAGES = 2


@dataclass(frozen=True)
class Sm100SmemPlan(SmemPlan):
    """Adds to what is always live the TMEM address.  A dispatch warp has one slot, of a whole row."""

    work_tiles: ClassVar[int] = 2

    @property
    def stage(self) -> PairStage:
        return PairStage(self.config.block_m, self.config.k_block)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a stage: one CTA's 128 rows, of E2M1 a byte per value beside E4M3 tokens."""
        return self.stage.weight_bytes

    @property
    def fc1_row_bytes(self) -> int:
        """A CTA's 64 outputs of Linear1 for a token."""
        return self.config.problem.formats.activations.row_bytes(BLOCK_N // 2)

    @property
    def fc1_tile_bytes(self) -> int:
        """One pass of the Linear1 epilogue: [store_block_m][64]."""
        return self.config.store_block_m * self.fc1_row_bytes

    @property
    def tile_fields(self) -> tuple[Field, ...]:
        """cd, Linear1: two stages; Linear2: one BF16 tile.  sfb: of the weights; sfa: of the tokens."""
        staged = align(max(FC1_STORE_STAGES * self.fc1_tile_bytes, result_bytes(self.config.store_block_m)), OPERAND_ALIGNMENT)
        return (
            *self.stage.operands(self.num_stages),
            Field("cd", (self.config.epilogue_warpgroups, staged), U8, OPERAND_ALIGNMENT),
            *self.stage.scales(self.num_stages),
        )

    @property
    def maxima(self) -> Field:
        return Field("amax", (self.config.epilogue_warpgroups, WARPS_PER_GROUP, self.config.store_block_m), U32, 16)

    @property
    def pull_chunk(self) -> int:
        return self.config.problem.formats.activations.row_bytes(self.config.problem.hidden)

    @property
    def after_barriers(self) -> tuple[Field, ...]:
        """tmem_address: the column that the TMEM allocation starts at."""
        return (Field("tmem_address", (1,), U32), *super().after_barriers)

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order."""
        num_stages, work_tiles, readers = self.num_stages, self.work_tiles, 32 * (CLUSTER * (2 + WARPS_PER_GROUP) + 1)
        dispatch_warps, sets = self.config.dispatch_warps, 2 * self.config.epilogue_warps
        return (
            MBarrier("full", num_stages, 4, "token and weight loaders of both CTAs", "operands and scales of both CTAs", "MMA warp", True),
            MBarrier("empty", num_stages, 1, "tcgen05.commit, multicast to the pair", "", "token and weight loaders"),
            MBarrier("acc_full", ACCUMULATORS, 1, "tcgen05.commit, multicast to the pair", "", "epilogue warps"),
            MBarrier("acc_empty", ACCUMULATORS, 8, "the four warps of the epilogue warpgroup of both CTAs", "", "MMA warp", True),
            MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "scheduler warp, dispatch warps and epilogue warps, once"),
            MBarrier("work_tile_full", work_tiles, 1, "the pair's scheduler warp", "the work tile", "loaders, MMA warp, epilogue warps"),
            MBarrier("work_tile_empty", work_tiles, readers, "every lane that reads the tile, in the pair", "", "scheduler warp", True),
            MBarrier("pull", dispatch_warps, 1, "the dispatch warp", "one token row", "the dispatch warp"),
            MBarrier("combine", sets, 1, "the epilogue warp", "one piece of a token's top-k results", "the epilogue warp"),
        )
