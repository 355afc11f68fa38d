"""Shared memory of one CTA on SM100 (article 3.2.1.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from ....blocks.sm100.pair_stage import PairStage
from ....blocks.sm100.result_tile import result_bytes
from ....blocks.sm100.tmem_plan import ACCUMULATORS
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....hardware.k_block import BYTE_VALUES, KBlock
from ....hardware.operand_tile import OPERAND_ALIGNMENT
from ....layouts.arith import align
from ....layouts.mbarrier import MBarrier
from ....layouts.region import U8, U32, Field
from ....recipe import MXFP8, Format
from ..layouts.smem_plan import SmemPlan
from ..layouts.tile import DISPATCH_WARPS, WARPS_PER_GROUP

FC1_STORE_STAGES = 2


@dataclass(frozen=True)
class Sm100SmemPlan(SmemPlan):
    """Adds to what is always live the TMEM address and, for each of `trace_warps` warps, the number of stamps it has left so far.

    `store_block_m` is the tokens of one epilogue pass; the epilogue warpgroups take alternate tiles.  `k_block` is the K of a stage,
    `tokens` the format of the activations of both linears."""

    work_tiles: ClassVar[int] = 2

    store_block_m: int = field(kw_only=True)
    epilogue_warpgroups: int = field(kw_only=True)
    k_block: KBlock = field(kw_only=True, default=BYTE_VALUES)
    tokens: Format = field(kw_only=True, default=MXFP8)
    trace_warps: int = field(kw_only=True, default=0)

    @property
    def epilogue_warps(self) -> int:
        return WARPS_PER_GROUP * self.epilogue_warpgroups

    @property
    def stage(self) -> PairStage:
        """Operands and scales of a stage."""
        return PairStage(self.block_m, self.k_block)

    @property
    def weight_bytes(self) -> int:
        return self.stage.weight_bytes

    @property
    def token_bytes(self) -> int:
        return self.stage.token_bytes

    @property
    def weight_transaction(self) -> int:
        """Bytes TMA counts for one CTA's weights and scales."""
        return self.stage.weight_transaction

    @property
    def token_transaction(self) -> int:
        """Bytes TMA counts for one CTA's half of the tokens and the scales of all."""
        return self.stage.token_transaction

    @property
    def fc1_row_bytes(self) -> int:
        """A CTA's 64 outputs of Linear1 for a token."""
        return self.tokens.row_bytes(BLOCK_N // 2)

    @property
    def fc1_tile_bytes(self) -> int:
        """One pass of the Linear1 epilogue: [store_block_m][64]."""
        return self.store_block_m * self.fc1_row_bytes

    @property
    def staging(self) -> Field:
        """Linear1: two stages; Linear2: one BF16 tile."""
        size = align(max(FC1_STORE_STAGES * self.fc1_tile_bytes, result_bytes(self.store_block_m)), OPERAND_ALIGNMENT)
        return Field("cd", (self.epilogue_warpgroups, size), U8, OPERAND_ALIGNMENT)

    @property
    def scales(self) -> tuple[Field, ...]:
        """sfb: of the weights; sfa: of the tokens."""
        return self.stage.scales(self.num_stages)

    @property
    def maxima(self) -> Field:
        """amax: one word per warp and token of a pass."""
        return Field("amax", (self.epilogue_warpgroups, WARPS_PER_GROUP, self.store_block_m), U32, 16)

    @property
    def pull_chunk(self) -> int:
        return self.tokens.row_bytes(self.hidden)

    @property
    def pull_slots(self) -> int:
        """One, of a whole row."""
        return 1

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order."""
        return barrier_table(
            num_stages=self.num_stages, work_tiles=self.work_tiles, dispatch_warps=DISPATCH_WARPS, epilogue_warps=self.epilogue_warps
        )

    @property
    def after_barriers(self) -> tuple[Field, ...]:
        """tmem_address: the column that the TMEM allocation starts at.  trace_count: stamps so far of each traced warp."""
        return (Field("tmem_address", (1,), U32), Field("trace_count", (self.trace_warps,), U32))


def barrier_table(*, num_stages: int, work_tiles: int, dispatch_warps: int, epilogue_warps: int) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA, in SMEM order."""
    readers = 32 * (CLUSTER * (2 + WARPS_PER_GROUP) + 1)
    return (
        MBarrier("full", num_stages, 4, "token and weight loaders of both CTAs", "operands and scales of both CTAs", "MMA warp", True),
        MBarrier("empty", num_stages, 1, "tcgen05.commit, multicast to the pair", "", "token and weight loaders"),
        MBarrier("acc_full", ACCUMULATORS, 1, "tcgen05.commit, multicast to the pair", "", "epilogue warps"),
        MBarrier("acc_empty", ACCUMULATORS, 8, "the four warps of the epilogue warpgroup of both CTAs", "", "MMA warp", True),
        MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "scheduler warp, dispatch warps and epilogue warps, once"),
        MBarrier("work_tile_full", work_tiles, 1, "the pair's scheduler warp", "the work tile", "loaders, MMA warp, epilogue warps"),
        MBarrier("work_tile_empty", work_tiles, readers, "every lane that reads the tile, in the pair", "", "scheduler warp", True),
        MBarrier("pull", dispatch_warps, 1, "the dispatch warp", "one token row", "the dispatch warp"),
        MBarrier("combine", 2 * epilogue_warps, 1, "the epilogue warp", "one piece of a token's top-k results", "the epilogue warp"),
    )
