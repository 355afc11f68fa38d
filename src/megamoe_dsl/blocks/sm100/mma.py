"""The K loop of a tile on the MMA warp of an SM100 pair's even CTA: scales to TMEM and MMAs, word by word of the scales (article 4.4).

waits     full, per stage
signals   empty of all CTAs that may write into one another's stages, per stage

The pipe of the tensor core takes copies and MMAs in order, so every word of a stage's scales goes through the same columns.

Swap-AB: the weights are the MMA's A (256 rows over the pair).  The tokens are its N, which is no larger than the valid tokens need.  Of two
consumers of a tile, each has weights of its own, which the same tokens are multiplied with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import tcgen05
from ...device.stage import Stage
from ...device.warp import elect
from ...hardware.cta_pair import BLOCK_N, CLUSTER
from ...hardware.k_block import KBlock
from ...hardware.scale_factors import SF_ATOM_BYTES
from ...hardware.scaled_mma import ScaledMma
from ...layouts.arith import select


@dataclass(frozen=True)
class ScaleColumns:
    """Where a stage's scales go in TMEM: the tokens' from column `sfa` on, in `atoms` of 128 rows; the weights' from `sfb` on, an
    atom for each of `consumers`."""

    sfa: int
    sfb: int
    atoms: int
    consumers: int = 1


@dataclass(frozen=True)
class PairTile:
    """A tile on the tensor cores.

    accumulator  first TMEM column of its sums, of the first consumer
    instruction  descriptor for its number of tokens, of MMAs of this kind
    first_scale  column, counted from `scales.sfa`, of the first token's scales: one for each 32 rows before it in its atom
    apart        columns from a consumer's sums to the next one's
    """

    accumulator: Int32
    instruction: Any
    first_scale: Any
    kind: cutlass.Constexpr[ScaledMma]
    k_block: cutlass.Constexpr[KBlock]
    scales: cutlass.Constexpr[ScaleColumns]
    apart: cutlass.Constexpr[int] = 0


@cute.jit
def multiply(stage: Stage, tile: PairTile, k_blocks: Int32):
    """Runs in all lanes; one lane issues.  Returns the stage after the last of `k_blocks`."""
    columns, kind = tile.scales, tile.kind
    high = tcgen05.OPERAND_HIGH[tile.k_block.row_bytes]
    for k in cutlass.range(k_blocks, unroll=1):
        stage.wait_full()
        tcgen05.fence_after_sync()
        if elect():
            for word in cutlass.range_constexpr(tile.k_block.words):
                copy_word(stage, columns, word)
                weights, tokens = stage.shared("weights") >> 4, stage.shared("tokens") >> 4
                for i, scale_id in enumerate(kind.scale_ids):
                    step = word * len(kind.scale_ids) + i
                    for consumer in range(columns.consumers):
                        own = consumer * (BLOCK_N * tile.k_block.row_bytes >> 4)
                        tcgen05.mma(
                            kind,
                            tile.accumulator + consumer * tile.apart if consumer else tile.accumulator,
                            tcgen05.descriptor(weights + (own + step * tcgen05.K_STEP), high),
                            tcgen05.descriptor(tokens + step * tcgen05.K_STEP, high),
                            tcgen05.with_scale_id(tile.instruction, scale_id),
                            columns.sfb + 4 * consumer,
                            columns.sfa + tile.first_scale,
                            Int32(1) if step else select(k == 0, Int32(0), Int32(1)),
                        )
            tcgen05.commit_pair(stage.empty, (1 << max(stage.cluster, CLUSTER)) - 1)
        stage = stage.next()
    return stage


def copy_word(stage: Stage, columns: ScaleColumns, word: int) -> None:
    """A word of the scales of all rows to TMEM."""
    atom_size = SF_ATOM_BYTES >> 4
    sfb = stage.shared("sfb") >> 4
    for atom in range(columns.consumers):
        source = tcgen05.descriptor(sfb + word * atom_size * columns.consumers + atom * atom_size, tcgen05.SCALE_HIGH)
        tcgen05.copy_scales(columns.sfb + 4 * atom, source)
    sfa = stage.shared("sfa") >> 4
    for atom in range(columns.atoms):
        source = tcgen05.descriptor(sfa + (word * columns.atoms + atom) * atom_size, tcgen05.SCALE_HIGH)
        tcgen05.copy_scales(columns.sfa + 4 * atom, source)
