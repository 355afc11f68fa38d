"""Whole tiles of 128 tokens by 256 rows of E2M1 weights that other warps decode into a stage (decode.py), with tokens as the wgmma's A from
registers: those of the next K block are loaded while the sums of this one are promoted.

waits     full, per stage
signals   empty, per warp and stage

A stage is given back when the tensor core has read it, before the sums of its last product are promoted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import wgmma
from ...device.matrix import load_four
from ...device.memory import load_shared_f32
from ...device.stage import Stage, release_stage
from ...device.warp import shuffle
from ...hardware.packed_tile import TILE_ROWS
from .decoded_share import DecodedShare
from .math_thread import MathThread
from .promoted_sums import PromotedSums
from .tokens_as_m import CHUNK_ROWS, CHUNKS, ROW_BYTES


@dataclass(frozen=True)
class DecodedAhead(DecodedShare):
    """The share of a thread: 64 tokens of its warpgroup, both chunks of weight rows.

    place  of what it loads of a stage's tokens
    """

    place: Any

    @staticmethod
    def of(me: MathThread) -> DecodedAhead:  # type: ignore[override]
        """Of a whole tile."""
        share = DecodedAhead(me.group, me.warp, me.lane, False, CHUNKS, CHUNK_ROWS, TILE_ROWS, None)
        return replace(share, place=share.fragment_place())

    def fragment_place(self) -> Any:
        """Where the first 32 of K of its tokens are in a stage, as `ldmatrix` wants addresses: lane 8 m + r gives row r of matrix m, the
        first of which are 16 bytes of rows 0 to 7 and of rows 8 to 15, then the 16 bytes beside them."""
        matrix, row = self.lane >> 3, self.lane & 7
        token = self.warp_token + ((matrix & 1) * 8 + row)
        # From here on it is nothing that ptxas could compute again in each K block, while the tensor core waits.
        return shuffle(token * ROW_BYTES + ((matrix >> 1 ^ row) << 4), self.lane)

    def fragment(self, stage: Stage) -> tuple[Any, ...]:
        """A full stage's tokens as the wgmma's A: rows `row` and `row + 8` of the warp's 16, and the 16 bytes beside them, step by step."""
        first = stage.shared("tokens") + self.place
        return tuple(word for step in range(wgmma.STEPS) for word in load_four(first ^ (32 * step)))


@cute.jit
def multiply_ahead_tile(stage: Stage, me: DecodedAhead, k_blocks: Int32):
    """`k_blocks` > 0 stages, the first of them full.  Returns the sums, chunk by chunk, and the stage after the last."""
    acc, tokens = me.zero(), me.fragment(stage)
    for _ in cutlass.range(k_blocks - 1, unroll=1):
        acc, tokens, stage = multiply_stage(stage, me, acc, tokens, True)
    acc, tokens, stage = multiply_stage(stage, me, acc, tokens, False)
    return me.scale_rows(acc.parts, stage.previous()), stage


@cute.jit
def multiply_stage(stage: Stage, me: DecodedAhead, acc: PromotedSums, tokens: Any, more: cutlass.Constexpr[bool]):
    """One K block, whose tokens are loaded.  Returns the sums, the next stage's tokens, and that stage; if there are no `more`, this one is
    not given back."""
    weights, following = stage.shared("weights"), stage.next()
    token_scale = stage.token_scales + me.token * 4
    ((factor,), *_) = me.block_scales(stage, None, 0)
    sums, partial = [], acc.partial
    for c in cutlass.range_constexpr(CHUNKS):
        ends = c == CHUNKS - 1 and more
        partial = wgmma.issue_registers(tokens, wgmma.descriptor((weights + c * me.chunk_bytes) >> 4), partial)
        if cutlass.const_expr(c == 0):
            per_token = [load_shared_f32(token_scale + 32 * h) * factor for h in range(2)]
        if cutlass.const_expr(ends):
            following.wait_full()
        partial = wgmma.wait(partial, 0, tokens)
        if cutlass.const_expr(ends):
            release_stage(stage, me.lane)
            tokens = me.fragment(following)
        old = acc.parts[c]
        sums.append(tuple(old[i] + partial[i] * per_token[i // 2 % 2] for i in range(len(old))))
    return PromotedSums(tuple(sums), partial), tokens, following
