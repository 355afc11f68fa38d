"""The warps of SM90 that gather the rows of A, thread by thread, 16 bytes at a time, into the swizzled tile of a stage: they wait for
work_tile_full per tile and empty per stage, and every thread signals full once it has copied.

Which rows they are is read once per tile.  What lies beyond the tile's rows becomes zero and is not fetched.  Scales come for several K
blocks at once, and lie where no stage owns them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.memory import VECTOR, arrive_when_copied, copy_vector, copy_word, fence_async_shared, load_u32
from ...device.ring import SCALE_BYTES, Stage
from ...hardware.operand_tile import ROW_BYTES
from ...layouts.arith import minimum, select
from .. import tiles
from .context import GemmContext, GemmStage, GemmTile


@dataclass(frozen=True)
class ScaledStage(Stage):
    """A place of the ring of scales (rows.py, `scale_places`) has `at_once` words of each row of the tile, one for each K block."""

    at_once: cutlass.Constexpr[int]
    places: cutlass.Constexpr[int]  # of that ring
    word: Int32  # of the stage's K block, counted through all places; with one at once the scales are the stage's, and this does not count

    def next(self) -> Self:
        following = super().next()
        # A power of two, so that math warps need not compare.
        return replace(following, word=(self.word + 1) & (self.places * self.at_once - 1)) if self.at_once > 1 else following

    @property
    def word_in_place(self) -> Any:
        """0 where a place begins."""
        return self.word & (self.at_once - 1) if self.at_once > 1 else 0

    @property
    def scale_step(self) -> int:  # type: ignore[override]
        return SCALE_BYTES * self.at_once

    @property
    def token_scales(self) -> Any:
        if self.at_once == 1:
            return super().token_scales
        place = self.word >> (self.at_once.bit_length() - 1)
        return self.plan.address(self.smem, "sfa", place) + self.word_in_place * SCALE_BYTES


@dataclass(frozen=True)
class GatheredStage(ScaledStage, GemmStage):
    """A stage whose rows threads have written."""

    def wait_full(self) -> None:
        super().wait_full()
        fence_async_shared()


LANES_PER_ROW = ROW_BYTES // VECTOR
ROWS_PER_COPY = 32 // LANES_PER_ROW


def gather_tokens(ctx: GemmContext, number: Int32) -> None:
    """Rows of A and their scales, if they have any, by the warp with this number among those that gather."""
    rows, first = ctx.config.rows, ctx.first_stage
    stage = ScaledStage(**vars(first), at_once=rows.at_once, places=rows.scale_places(first.ring.depth), word=Int32(0))
    tiles.load_tokens(ctx, stage, partial(gather_tile, number=number), lambda ctx, tile: ctx.wait_rows(tile))


@cute.jit
def gather_tile(ctx: GemmContext, tile: GemmTile, stage: ScaledStage, number: Int32):
    """All K blocks of a tile.  Lane l copies 16-byte chunk l % 8 of row l / 8 of every four, and the scales of row l of every 32; every
    second four and 32 are this warp's.  Returns the ring's next stage."""
    config, lane = ctx.config, cute.arch.lane_idx()
    warps, first_row = config.rows.warps, ctx.source_row(tile)
    row, chunk = number * ROWS_PER_COPY + lane // LANES_PER_ROW, lane % LANES_PER_ROW
    rows = [row + start for start in range(0, config.block_m, warps * ROWS_PER_COPY)]
    scaled = [number * 32 + lane + start for start in range(0, config.block_m if config.tile.scaled else 0, warps * 32)]
    sources = [source_of(ctx, listed_row(ctx, first_row + one)) for one in rows]
    scale_sources = [source_of(ctx, listed_row(ctx, first_row + one)) for one in scaled]
    # The swizzle looks at the row among eight, which is the same for all rows of a thread.
    place = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4)
    row_bytes = config.problem.formats.activations.row_bytes(config.problem.k)
    for k in cutlass.range(config.problem.k_blocks, unroll=1):
        stage.wait_empty()
        tokens = stage.shared("tokens") + place
        of_chunk = bytes_of_chunk(ctx, k, chunk)
        column = ctx.args.a + Int64(k * ROW_BYTES + chunk * VECTOR)
        for i in cutlass.range_constexpr(len(rows)):
            if (i + 1) * warps * ROWS_PER_COPY <= config.block_m or rows[i] < config.block_m:
                num_bytes = select(rows[i] < tile.valid_m, of_chunk, Int32(0))
                copy_vector(tokens + i * warps * ROWS_PER_COPY * ROW_BYTES, column + Int64(sources[i]) * row_bytes, num_bytes)
        if stage.word_in_place == 0:
            copy_scales(ctx, tile, k, stage, scaled, scale_sources)
        arrive_when_copied(stage.full)
        stage = stage.next()
    return stage


def bytes_of_chunk(ctx: GemmContext, k: Any, chunk: Any) -> Any:
    """What a row has of a 16-byte chunk of K block `k`: nothing beyond K, where the last block is partial."""
    problem = ctx.config.problem
    last, chunks = problem.k_blocks - 1, problem.k % problem.k_block * problem.formats.activations.element_bits // (8 * VECTOR)
    return select((k < last) | (chunk < chunks), Int32(VECTOR), Int32(0)) if chunks else Int32(VECTOR)


@cute.jit
def copy_scales(ctx: GemmContext, tile: GemmTile, k: Int32, stage: ScaledStage, scaled: list[Any], sources: list[Int32]):
    """A lane's rows' scales from K block `k` on, of as many as lie together."""
    config = ctx.config
    for i in cutlass.range_constexpr(len(scaled)):
        if (i + 1) * config.rows.warps * 32 <= config.block_m or scaled[i] < config.block_m:
            num_bytes = select(scaled[i] < tile.valid_m, Int32(stage.scale_step), Int32(0))
            source = ctx.args.a_sf + (Int64(sources[i]) * ctx.args.a_sf_ld + k) * SCALE_BYTES
            copy_word(stage.token_scales + scaled[i] * stage.scale_step, source, num_bytes, stage.at_once)


def listed_row(ctx: GemmContext, number: Any) -> Any:
    """What the list has at a number, or at its last one."""
    return load_u32(ctx.args.sources + Int64(cutlass.min(number, ctx.args.m - 1)) * 4)


def listed_in(ctx: GemmContext, rows: Any, first: Any, number: Any) -> Any:
    """What the list has for a row of a group, whose rows begin at `first`; beyond the group's, for the one behind its last."""
    return listed_row(ctx, first + minimum(number, rows))


def source_of(ctx: GemmContext, listed: Any) -> Int32:
    """Row of A of what the list has; of a row beyond A the last one."""
    return cutlass.max(cutlass.min(listed, ctx.args.a_rows - 1), Int32(0))
