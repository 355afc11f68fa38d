"""Shared memory of one CTA on SM90: the same parts as on SM100, for tiles whose accumulators live in registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ....layouts.arith import Int, align
from ....layouts.mbarrier import MBarrier
from ....layouts.region import F32, U8, U32, U64, Field, Region
from ..layouts.combine_plan import CombinePlan
from ..layouts.deepest_ring import deepest_ring
from ..layouts.tile import BLOCK_K, DISPATCH_WARPS
from ..sm100.smem_plan import OPERAND_ALIGNMENT
from .barriers import sm90_barrier_table

TILE_ROWS = 256  # weight rows of a tile: 128 per warpgroup
MATH_WARPGROUPS = 2
WORK_TILES = 1  # tiles fetched for a CTA that not all of its roles have read
MOST_COLUMNS = 32  # tokens that can be the wgmma's columns: more are its rows
PULL_CHUNK = 1024
PULL_SLOTS = (4, 2)  # per dispatch warp; the first that fits beside the ring


def pull_chunk(hidden: int) -> int:
    """Bytes of a token row that one bulk copy moves: the largest divisor of `hidden` up to 1024 that is a multiple of 128."""
    return next(n for n in range(PULL_CHUNK, 0, -128) if hidden % n == 0)


@dataclass(frozen=True)
class Sm90SmemPlan:
    """Byte plan; the names are those of `Sm100SmemPlan` where the parts are the same.

    main     the TMA ring, epilogue staging, pull slots, expert_count u32[E]
    combine  per math warp its slots (kernels/mega_moe/layouts/combine_plan.py); takes the place of `main`
    tail     scale exchange, per-expert table, work tiles, mbarriers: always live; stamps so far of each of `trace_warps` warps
    """

    num_experts: int
    experts_per_rank: int
    hidden: int
    topk: int
    block_m: int
    num_stages: int
    cluster: int = 1
    pull_slots: int = PULL_SLOTS[-1]
    trace_warps: int = 0

    @property
    def math_warps(self) -> int:
        return 4 * MATH_WARPGROUPS

    @property
    def weight_bytes(self) -> int:
        return TILE_ROWS * BLOCK_K

    @property
    def token_bytes(self) -> int:
        return self.block_m * BLOCK_K

    @property
    def scale_bytes(self) -> int:
        """One FP32 scale per token of the tile."""
        return 4 * self.block_m

    def token_transaction(self, tokens: Int) -> Int:
        """Bytes TMA counts for a stage's first `tokens` tokens, and all scales."""
        return tokens * BLOCK_K + self.scale_bytes

    @property
    def pull_chunk(self) -> int:
        return pull_chunk(self.hidden)

    @property
    def fc2_tile_bytes(self) -> int:
        """With tokens as columns, BF16 [block_m][128] of a warpgroup as two halves of 128-byte rows; as rows, 64 tokens' 64 channels."""
        return self.block_m * (256 if self.block_m <= MOST_COLUMNS else 64)

    @property
    def cd_bytes(self) -> int:
        """Linear1: E4M3 [block_m][128]; Linear2: one tile per warpgroup."""
        return align(max(self.block_m * 128, MATH_WARPGROUPS * self.fc2_tile_bytes), OPERAND_ALIGNMENT)

    @property
    def combine(self) -> CombinePlan:
        return CombinePlan(self.hidden, self.topk, self.math_warps)

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        return sm90_barrier_table(
            num_stages=self.num_stages,
            work_tiles=WORK_TILES,
            dispatch_warps=DISPATCH_WARPS,
            pull_slots=self.pull_slots,
            math_warps=self.math_warps,
            cluster=self.cluster,
        )

    @cached_property
    def region(self) -> Region:
        stages = self.num_stages
        main = Region.stack(
            "main",
            Field("weights", (stages, self.weight_bytes), U8, OPERAND_ALIGNMENT),
            Field("tokens", (stages, self.token_bytes), U8, OPERAND_ALIGNMENT),
            Field("cd", (self.cd_bytes,), U8, OPERAND_ALIGNMENT),
            Field("sfa", (stages, align(self.scale_bytes, 128) // 4), F32, 128),
            Field("pull", (DISPATCH_WARPS, self.pull_slots, self.pull_chunk), U8, 128),
            Field("expert_count", (self.num_experts,), U32),
        )
        combine = Region.stack("combine", Field("combine_slots", (self.math_warps, self.combine.slots, self.combine.chunk_bytes), U8, 128))
        tail = Region.stack(
            "tail",
            Field("amax", (self.math_warps, self.block_m), U32, 16),
            Field("expert_table", (self.experts_per_rank + 1, 2), U32, 8),
            Field("work_tiles", (WORK_TILES, 4), U32, 16),
            *(Field(f"{b.name}_barrier", (b.count,), U64) for b in self.barriers),
            Field("trace_count", (self.trace_warps,), U32),
        )
        return Region.stack("smem", Region.overlay("phase", main=main, combine=combine), tail)

    @property
    def num_bytes(self) -> int:
        return self.region.size

    def max_stages(self, capacity: int) -> int:
        """Deepest ring that fits; 0 when not even one stage does."""
        return deepest_ring(self, capacity)
