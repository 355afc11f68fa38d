"""The grouped GEMMs: the order of their tiles, and what becomes of sums; loaders and main loops are the fused kernel's.

| role           | waits                 | signals        |
|---|---|---|
| schedule_tiles | work_tile_empty       | counts, once; work_tile_full |
| finish_tile    | nothing               | nothing: the next launch reads |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from ....blocks.sm90.main_loop import Share
from ....blocks.sm90.packed_share import PackedShare
from ....device.ring import Ring
from ....schedule.fused_moe import Block
from ....schedule.gemm import GroupedOrder
from ..sm90.math import epilogue_of, with_bias
from ..tile_scheduler import SharedTable, WorkTile, fill_table, publish_tiles, start_walk
from .config import StageConfig
from .context import StageContext


@dataclass(frozen=True)
class LinearOrder(GroupedOrder):
    """Expert by expert, tiles of one linear as the fused kernel's roles know them."""

    config: cutlass.Constexpr[StageConfig]
    table: SharedTable

    def block(self, step: Any, local: Any, sizes: Any) -> Any:
        one = super().block(step, local, sizes)
        return Block(self.config.part.phase, one.expert, one.m_block, one.n_block, one.row_block, one.valid_m)


@cute.jit
def schedule_tiles(ctx: StageContext):
    """Fills the table of experts and hands the cluster's tiles out, in the scheduler warp."""
    fill_table(ctx)
    if ctx.cta_rank == 0:
        publish_tiles(ctx, start_walk(ctx, LinearOrder))


@cute.jit
def finish_tile(ctx: StageContext, tile: WorkTile, me: Share | PackedShare, sums: Any, stores: Ring):
    """Sums as BF16 to the stage's results: what the fused kernel does with those of Linear2.  Nobody else reads what is staged."""
    epilogue_of(ctx).finish_fc2(ctx, tile, me, with_bias(ctx, tile, me, ctx.result_phase, sums))
    return stores
