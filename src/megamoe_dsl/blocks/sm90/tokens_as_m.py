"""Tiles of 128 tokens by 256 weight rows: tokens are the wgmma's rows, weight rows its columns, as two chunks of 128.

A warpgroup has 64 of the tokens and both chunks.  When a tile has no more than 64 tokens (a half tile), each warpgroup has all of them and
one chunk, so that neither idles.

The values that a thread has of a row share one token scale, so promotion multiplies scales once per row and weight block; with tokens as
columns it does so once per token, which is twice as many instructions.  The 128 outputs of a token lie in one warp, or in two in a half
tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import wgmma
from ...device.memory import load_shared_f32
from ...device.stage import Stage, release_stage
from ...hardware.operand_tile import BLOCK_K
from ...layouts.arith import select
from .math_thread import MathThread
from .promoted_sums import PromotedSums
from .weight_scales import WeightScales

CHUNKS = 2
CHUNK_ROWS = 128
ROW_BYTES = BLOCK_K
CHUNK_BYTES = CHUNK_ROWS * ROW_BYTES
GROUP_ROWS = 64  # of a wgmma: tokens of a warpgroup
WARP_ROWS = 16


@dataclass(frozen=True)
class RowShare(MathThread):
    """The share that a thread's warpgroup has of a tile, which is a `half` tile or a whole one: tokens from `first_token` on, chunks from
    `first_chunk` on.

    Value (4 j + 2 h + e) of an accumulator's part: token `token` + 8 h, weight row 8 j + 2 (lane % 4) + e of the chunk.
    """

    half: cutlass.Constexpr[bool]

    @staticmethod
    def of(me: MathThread, half: bool) -> RowShare:
        """The share of a thread."""
        return RowShare(me.group, me.warp, me.lane, half)

    @property
    def has_own_weights(self) -> bool:
        """Whether its warpgroup alone has its 128 weight rows; else both warpgroups have all 256."""
        return self.half

    @property
    def chunks(self) -> int:
        """Chunks of weight rows that the warpgroup multiplies."""
        return 1 if self.half else CHUNKS

    @property
    def first_chunk(self) -> Any:
        """The first of them."""
        return self.group if self.half else 0

    @property
    def first_token(self) -> Any:
        """The first of the warpgroup's 64 tokens."""
        return 0 if self.half else self.group * GROUP_ROWS

    @property
    def warp_token(self) -> Any:
        """The first of its warp's 16 tokens."""
        return self.first_token + self.warp * WARP_ROWS

    @property
    def token(self) -> Any:
        """The first of its two tokens; the other is 8 further."""
        return self.warp_token + self.row

    def zero(self) -> PromotedSums:
        """Sums before the first K block."""
        return PromotedSums.zero(self.chunks, CHUNK_ROWS // 2)

    @cute.jit
    def multiply(self, stage: Stage, acc: PromotedSums, scales: WeightScales, k: Int32, more: cutlass.Boolean):
        """One K block; its stage is full.  Returns the sums and the next stage, which is full if there are `more`."""
        tokens = wgmma.descriptor((stage.shared("tokens") + self.first_token * ROW_BYTES) >> 4)
        weights = stage.shared("weights") + self.first_chunk * CHUNK_BYTES
        token_scale = stage.shared("sfa") + self.token * 4
        following = stage.next()
        first, second = scales.at(k)
        weight_scales = self.scales_of_chunks(first, second, scales.alternating)
        sums, partial = [], acc.partial
        for c in cutlass.range_constexpr(self.chunks):
            partial = wgmma.issue(tokens, wgmma.descriptor((weights + c * CHUNK_BYTES) >> 4), partial)
            if cutlass.const_expr(c == 0):
                per_token = [load_shared_f32(token_scale + 32 * h) for h in range(2)]
            if cutlass.const_expr(c == self.chunks - 1):
                if more:
                    following.wait_full()
            partial = wgmma.wait(partial)
            product = [[per_token[h] * scale for scale in weight_scales[c]] for h in range(2)]
            old = acc.parts[c]
            sums.append(tuple(old[i] + partial[i] * product[i // 2 % 2][i // 4 % 2] for i in range(CHUNK_ROWS // 2)))
        release_stage(stage, self.lane)
        return PromotedSums(tuple(sums), partial), following

    def scales_of_chunks(self, first: Any, second: Any, alternating: Any) -> tuple[tuple[Any, Any], ...]:
        """Of each chunk's even and odd groups of 8 weight rows."""
        if self.has_own_weights:
            return ((first, second),)
        return (first, select(alternating, second, first)), (select(alternating, first, second), second)
