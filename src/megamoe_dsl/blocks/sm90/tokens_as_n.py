"""Tiles of few tokens: swap-AB, tokens are the wgmma's columns, weight rows its rows: of each warpgroup one or two blocks of 64.

A tile is as small as 8 tokens, so a short batch wastes no tensor-core work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import wgmma
from ...device.memory import load_shared_f32, load_shared_f32x2
from ...device.ring import Stage, release_stage
from ...hardware.operand_tile import ROW_BYTES
from .math_thread import MathThread, PromotedSums, WeightScales, multiply_tile

BLOCKS = 2  # of 64 weight rows per warpgroup
BLOCK_ROWS = 64
BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES


@dataclass(frozen=True)
class ColumnShare(MathThread):
    """The share that a thread's warpgroup has of a tile: all of its `tokens`, a multiple of 8, and `blocks` times 64 of the weight rows.

    Value (4 j + 2 h + q) of an accumulator's part b: weight row 64 b + 16 warp + row + 8 h of the warpgroup's, token 8 j + pair + q.
    """

    tokens: cutlass.Constexpr[int]
    blocks: cutlass.Constexpr[int]

    @staticmethod
    def of(me: MathThread, tokens: int, blocks: int = BLOCKS) -> ColumnShare:
        return ColumnShare(me.group, me.warp, me.lane, tokens, blocks)

    @property
    def has_own_weights(self) -> bool:
        """True: each warpgroup has its own 128 weight rows."""
        return True

    def zero(self) -> PromotedSums:
        return PromotedSums.zero(self.blocks, self.tokens // 2)

    def multiply_tile(self, stage: Stage, scales: WeightScales | None, k_blocks: Int32) -> tuple[Any, Stage]:
        sums, following = multiply_tile(stage, self, scales, k_blocks)
        return sums, following

    @cute.jit
    def multiply(self, stage: Stage, acc: PromotedSums, scales: WeightScales, k: Int32, more: cutlass.Boolean):
        """One K block; its stage is full.  Returns the sums and the next stage, which is full if there are `more`."""
        weights = stage.shared("weights") + self.group * (self.blocks * BLOCK_BYTES)
        tokens = wgmma.descriptor(stage.shared("tokens") >> 4)
        token_scales = stage.token_scales + self.pair * 4
        row_scales = scales.at(k)
        following = stage.next()
        sums, partial = [], acc.partial
        for b in cutlass.range_constexpr(self.blocks):
            partial = wgmma.issue(wgmma.descriptor((weights + b * BLOCK_BYTES) >> 4), tokens, partial)
            if cutlass.const_expr(b == 0):
                # Loaded once, for both blocks, and used by the first: so the loads are done when the stage is released after the second.  A
                # load that only the last block used could still be under way then.
                per_token = [load_pair(stage, token_scales + 32 * j) for j in range(self.tokens // 8)]
            if cutlass.const_expr(b == self.blocks - 1):
                if more:
                    following.wait_full()
            partial = wgmma.wait(partial)
            sums.append(promote(acc.parts[b], partial, per_token, row_scales))
        release_stage(stage, self.lane)
        return PromotedSums(tuple(sums), partial), following

    # --- for several K blocks at a time (main_loop.py)
    def operands(self, stage: Stage, block: int = 0) -> tuple[Any, Any]:
        """Descriptors of a block of a stage's weights, and of its tokens."""
        weights = wgmma.descriptor((stage.shared("weights") + (self.group * self.blocks + block) * BLOCK_BYTES) >> 4)
        return weights, wgmma.descriptor(stage.shared("tokens") >> 4)

    def token_scales(self, stage: Stage) -> list[Any]:
        first = stage.token_scales + self.pair * 4
        return [load_pair(stage, first + 32 * j) for j in range(self.tokens // 8)]

    def promote(self, sums: Any, partial: Any, token_scales: list[Any], rows: list[Any]) -> tuple[Any, ...]:
        return promote(sums, partial, token_scales, rows)


def load_pair(stage: Stage, address: Any) -> tuple[Any, Any]:
    """Scales of two tokens that follow one another."""
    if stage.scales_in_pairs:
        first, second = load_shared_f32x2(address)
        return first, second
    return load_shared_f32(address), load_shared_f32(address + 4)


def promote(sums: Any, partial: Any, token_scales: list[Any], row_scales: list[Any]) -> tuple[Any, ...]:
    """sums + partial * token scale * row scale; of the weight rows 8 further the last of the row scales."""
    out = []
    for j, per_token in enumerate(token_scales):
        for h in range(2):
            for q in range(2):
                i = 4 * j + 2 * h + q
                out.append(sums[i] + partial[i] * (per_token[q] * row_scales[h % len(row_scales)]))
    return tuple(out)
