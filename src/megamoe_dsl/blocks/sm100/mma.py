"""The K loop of a tile on the MMA warp of an SM100 pair's even CTA: scales to TMEM and MMAs, word by word of the scales (article 4.4);
MMAs alone where operands have no scales.

waits     work_tile_full and acc_empty, per tile; full, per stage
signals   work_tile_empty, per tile; empty of all CTAs that may write into one another's stages, per stage; acc_full of both CTAs, per tile

Swap-AB: the weights are the MMA's A (256 rows over the pair), the tokens its N.  Copies and MMAs run in order, so every word of a stage's
scales goes through the same columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import tcgen05
from ...device.mbarrier import wait
from ...device.ring import Ring, Stage
from ...device.warp import elect
from ...hardware.cta_pair import BLOCK_N, CLUSTER, PairMma, ScaledMma, TmemPlan
from ...hardware.operand_tile import SF_ATOM_BYTES, KBlock
from ...layouts.arith import select
from ...layouts.records import Activity, Role
from ..tiles import TileContext, each_tile


@dataclass(frozen=True)
class PairTile:
    """A tile on the tensor cores.

    accumulator  first TMEM column of its sums, of the first consumer
    instruction  descriptor for its number of tokens, of MMAs of this kind
    first_scale  column, counted from `tmem.sfa`, of the first token's scales: one for each 32 rows before it in its atom
    tmem         plan of tensor memory: where scales and the sums of further consumers go
    mn_major     whether rows of shared memory are K, of weights and of tokens
    """

    accumulator: Int32
    instruction: Any
    first_scale: Any
    kind: cutlass.Constexpr[PairMma]
    k_block: cutlass.Constexpr[KBlock]
    tmem: cutlass.Constexpr[TmemPlan]
    mn_major: cutlass.Constexpr[tuple[bool, bool]] = (False, False)

    @property
    def runs(self) -> int:
        return self.k_block.words if self.tmem.scaled else 1

    @property
    def scale_ids(self) -> tuple[int, ...]:
        """First byte of the word of scales that each MMA of a run takes; 0 without scales."""
        return self.kind.scale_ids if isinstance(self.kind, ScaledMma) else (0,) * self.k_block.mmas

    def multiply(self, accumulator: Any, weights: Any, tokens: Any, consumer: int, scale_id: int, accumulate: Any) -> None:
        """One MMA of operands by their descriptors; with scales those from byte `scale_id` of the word that is in TMEM."""
        kind = self.kind
        if isinstance(kind, ScaledMma):
            columns = (self.tmem.sfb + 4 * consumer, self.tmem.sfa + self.first_scale)
            instruction = self.instruction | (scale_id << 29 | scale_id << 4)  # of A and of B, which count 32 channels
            tcgen05.scaled_mma(kind, accumulator, weights, tokens, instruction, *columns, accumulate)
        else:
            tcgen05.mma(kind, accumulator, weights, tokens, self.instruction, accumulate)


@cute.jit
def multiply(stage: Stage, tile: PairTile, k_blocks: Int32):
    """Runs in all lanes; one lane issues.  Returns the stage after the last of `k_blocks`."""
    high, ids = tcgen05.OPERAND_HIGH[tile.k_block.row_bytes], tile.scale_ids
    for k in cutlass.range(k_blocks, unroll=1):
        stage.wait_full()
        tcgen05.fence_after_sync()
        if elect():
            for word in cutlass.range_constexpr(tile.runs):
                copy_word(stage, tile, word)
                weights, tokens = stage.shared("weights") >> 4, stage.shared("tokens") >> 4
                for i, scale_id in enumerate(ids):
                    step = word * len(ids) + i
                    for consumer in range(tile.tmem.consumers):
                        own = consumer * (BLOCK_N * tile.k_block.row_bytes >> 4)
                        tile.multiply(
                            tile.accumulator + consumer * tile.tmem.block_m if consumer else tile.accumulator,
                            tcgen05.operand(weights, step, high, tile.mn_major[0], own),
                            tcgen05.operand(tokens, step, high, tile.mn_major[1]),
                            consumer,
                            scale_id,
                            Int32(1) if step else select(k == 0, Int32(0), Int32(1)),
                        )
            tcgen05.commit_pair(stage.empty, (1 << max(stage.cluster, CLUSTER)) - 1)
        stage = stage.next()
    return stage


def copy_word(stage: Stage, tile: PairTile, word: int) -> None:
    """Copies one word of scales of all rows to TMEM; does nothing without scales."""
    if not tile.tmem.scaled:
        return
    columns, consumers, atoms = tile.tmem, tile.tmem.consumers, tile.tmem.sfa_columns // 4
    atom_size = SF_ATOM_BYTES >> 4
    sfb = stage.shared("sfb") >> 4
    for atom in range(consumers):
        source = tcgen05.descriptor(sfb + word * atom_size * consumers + atom * atom_size, tcgen05.SCALE_HIGH)
        tcgen05.copy_scales(columns.sfb + 4 * atom, source)
    sfa = stage.shared("sfa") >> 4
    for atom in range(atoms):
        source = tcgen05.descriptor(sfa + (word * atoms + atom) * atom_size, tcgen05.SCALE_HIGH)
        tcgen05.copy_scales(columns.sfa + 4 * atom, source)


TileOf = Callable[[Any, Any, Ring], PairTile]
"""(context, tile, place of its accumulator) to the tile as tensor cores see it."""


def issue_mma(ctx: TileContext, tile_of: TileOf) -> None:
    """The MMA warp of the even CTA, which fills the accumulators in turn; runs in all lanes, one lane issues."""
    each_tile(ctx, Role.MMA, (ctx.first_stage, Ring.start(ctx.config.tmem.accumulators)), partial(multiply_tile, tile_of=tile_of))


@cute.jit
def multiply_tile(ctx: TileContext, tile: Any, places: tuple[Stage, Ring], tile_of: TileOf):
    """Multiplies one tile from these positions of the stage and accumulator rings; returns the positions of the next tile."""
    stage, acc = places
    wait(ctx.barrier("acc_empty", acc.index), acc.phase ^ 1)
    tcgen05.fence_after_sync()
    ctx.stamp(Activity.WAIT_STAGE, tile)
    stage = multiply(stage, tile_of(ctx, tile, acc), ctx.k_blocks_of(tile))
    if elect():
        tcgen05.commit_pair(ctx.barrier("acc_full", acc.index), ctx.own_pair)
    ctx.stamp(Activity.MULTIPLY, tile)
    return stage, acc.next()
