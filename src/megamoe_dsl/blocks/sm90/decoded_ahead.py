"""Whole tiles of 128 tokens by 256 rows of E2M1 weights of which CTAs of a cluster decode a half each (decode.py): the main loop of a
`DecodedShare` with tokens in registers, where those of the next K block are loaded while the sums of this one are promoted.

waits     full, per stage
signals   empty, per warp and stage

Where a CTA decodes all weights for itself its decode warps are what it waits for, and loading ahead gains nothing.  A stage is given back
when the tensor core has read it, before the sums of its last product are promoted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import wgmma
from ...device.memory import load_shared_f32
from ...device.ring import Stage, release_stage
from .decoded_share import DecodedShare
from .math_thread import MathThread, PromotedSums
from .tokens_as_m import CHUNKS


@dataclass(frozen=True)
class DecodedAhead(DecodedShare):
    """The share of a thread: 64 tokens of its warpgroup, both chunks of weight rows."""

    @staticmethod
    def of(me: MathThread) -> DecodedAhead:  # type: ignore[override]
        share = DecodedShare.of(me, half=False, in_registers=True)
        return DecodedAhead(*(getattr(share, one.name) for one in fields(share)))

    @cute.jit
    def multiply_tile(self, stage: Stage, scales: Any, k_blocks: Int32):
        acc, tokens = self.zero(), self.fragment(stage)
        for _ in cutlass.range(k_blocks - 1, unroll=1):
            acc, tokens, stage = multiply_stage(stage, self, acc, tokens, True)
        acc, tokens, stage = multiply_stage(stage, self, acc, tokens, False)
        return self.scale_rows(acc.parts, stage.previous()), stage


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
