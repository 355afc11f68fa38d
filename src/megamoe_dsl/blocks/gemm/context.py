"""What every role of a GEMM reads: the current tile of D, the configuration, the CTA's place in the grid and cluster, and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ...device.memory import load_shared_u32, load_shared_v2
from ...device.ring import Stage, TileQueue, read_tile
from ...device.tma import prefetch_tensor_map
from ...device.warp import elect
from ...hardware.cta_pair import CLUSTER
from ...layouts.arith import ceil_div, div, select
from ...layouts.records import tile_detail
from ..tiles import TileContext
from .tile import SCALE_STEP

APART, SAME_TOKENS, SAME_WEIGHTS, ALONE = range(4)
"""What the two tiles of a cluster share; `ALONE`: there is only one tile."""
LAST = -1  # n_block of the work tile that ends a queue


@dataclass(frozen=True)
class GemmTile:
    """One tile of D, as the scheduler publishes it."""

    group: Int32  # of its rows
    sharing: Int32  # with the tile of the cluster's other CTA
    n_block: Int32  # column block; -1 past the last tile
    row: Int32  # of A and D
    valid_m: Int32  # rows of it that are to be written; 0 or less where the block of a contiguous problem belongs to no group

    def valid(self) -> Boolean:
        return self.n_block != LAST


@cute.jit
def next_tile(queue: TileQueue) -> tuple[GemmTile, TileQueue]:
    """The warp's next tile, and the queue advanced by one."""
    (which, n_block, row, valid_m), following = read_tile(queue)
    return GemmTile(which >> 2, which & 3, n_block, row, valid_m), following


@dataclass(frozen=True)
class GemmStage(Stage):
    """A stage as the math warps read it for a tile.

    A CTA whose partner has no tile arrives at its own barrier once for each CTA, so the barrier always expects the same arrivals.
    If a tile may begin at `any_row`, its scales begin up to three places into the stage: TMA fetches scales from a multiple of four on.
    """

    any_row: cutlass.Constexpr[bool]
    cta_rank: Int32  # this CTA's place in the cluster
    alone: Int32  # whether its partner has no tile
    row: Int32  # of A that the tile begins at

    @property
    def token_scales(self) -> Any:
        first = self.shared("sfa")
        return first + (self.row & (SCALE_STEP - 1)) * 4 if self.any_row else first

    @property
    def scales_in_pairs(self) -> bool:  # type: ignore[override]
        return not self.any_row

    def reader_releases(self, lane: Any) -> Any:
        """Each lane releases another CTA's stage, or all lanes this CTA's."""
        return select(self.alone != 0, self.cta_rank, lane)


@dataclass(frozen=True)
class GemmContext(TileContext):
    """`config` and `maps` are the architecture's, `smem` is the shared address of the plan, `sm` the CTA's index in the grid, `cta_rank`
    its place in the cluster."""

    config: cutlass.Constexpr[Any]
    args: Any
    maps: Any
    smem: Int32
    sm: Int32
    cta_rank: Int32

    @property
    def first_k_block(self) -> Any:
        return self.cta_rank * self.config.most_k_blocks if self.config.split_k else 0

    def rows_of_group(self, tile: GemmTile) -> tuple[Int32, Int32]:
        """Number of rows of the tile's group, and its first row."""
        rows, first = load_shared_v2(self.shared("group_table", tile.group))
        return Int32(rows), Int32(first)

    def k_blocks_of(self, tile: GemmTile) -> Any:
        """K blocks of a tile that this CTA multiplies; where K are the rows of its group, even none take a stage."""
        config = self.config
        if config.split_k:
            return cutlass.min(config.k_blocks - self.first_k_block, config.most_k_blocks)
        if not config.problem.sums_rows:
            return Int32(config.k_blocks)
        rows = Int32(load_shared_u32(self.shared("group_table", tile.group)))
        return cutlass.max(ceil_div(rows, config.problem.k_block), Int32(1))

    def first_k_block_of(self, tile: GemmTile) -> Any:
        """The first of these K blocks.  For a group without rows it lies past the end of K, where TMA reads zeros."""
        if not self.config.problem.sums_rows:
            return self.first_k_block
        rows, first = load_shared_v2(self.shared("group_table", tile.group))
        return div(select(Int32(rows) > 0, Int32(first), self.args.m), self.config.problem.k_block)

    @property
    def first_stage(self) -> Stage:
        return self.config.rows.first_stage(super().first_stage)

    @property
    def first_read_stage(self) -> GemmStage:
        first, zero, rows = self.first_stage, Int32(0), self.config.rows
        return rows.read_stage(GemmStage(first.plan, first.cluster, first.smem, first.ring, rows.any_row, self.cta_rank, zero, zero))

    def source_row(self, tile: GemmTile) -> Any:
        """First row of a tile in A, or in the list of gathered rows."""
        if self.config.problem.sums_rows:
            return tile.row - tile.group * self.config.problem.tile_rows
        if not self.config.problem.places_rows:
            return tile.row
        begin = load_shared_u32(self.shared("group_table", tile.group, 1))
        return tile.row - begin + load_shared_u32(self.shared("source_rows", tile.group))

    # --- pairs of SM100
    @property
    def place_in_pair(self) -> Any:
        return self.cta_rank if self.config.pairs == 1 else self.cta_rank & 1

    @property
    def own_pair(self) -> Any:
        return 3 if self.config.pairs == 1 else Int32(3) << (self.cta_rank & 2)

    @property
    def same_rows(self) -> Any:
        """Mask of the CTAs that have the same rows of A: one of each pair."""
        return Int32(1 | 1 << CLUSTER) << self.place_in_pair

    next_tile = staticmethod(next_tile)

    @cute.jit
    def read_end(self, tile: GemmTile, queue: TileQueue):
        """If the cluster's other CTA had one more tile, the end of the queue is published after it, to both CTAs.  This CTA reads it before
        it exits, so that no write to its shared memory is in flight."""
        if cutlass.const_expr(self.config.blocks_per_fetch > 1):
            if tile.sharing == ALONE:
                next_tile(queue)

    def wait_rows(self, tile: GemmTile) -> None:
        """Waits until the rows of A of a tile and their scales are visible to TMA; only kernels that receive rows override this."""

    def detail(self, tile: GemmTile) -> Any:
        return tile_detail(div(tile.row, self.config.block_m), tile.n_block, 0)

    def is_half(self, tile: GemmTile) -> Any:
        return tile.valid_m <= self.config.block_m // 2 if self.config.half_tiles else False


@cute.jit
def prefetch_maps(ctx: Any):
    """Prefetches the tensor maps, except those of parts of a tile, into the descriptor cache."""
    if elect():
        for name in ctx.config.map_names:
            if cutlass.const_expr(not name.endswith("_part")):
                prefetch_tensor_map(getattr(ctx.maps, name))


def rank_in_cluster(config: Any) -> Int32:
    return Int32(cute.arch.block_idx_in_cluster() if config.cluster > 1 else 0)
