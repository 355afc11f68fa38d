"""Tiles of 256 tokens by 128 rows of E2M1 weights that other warps decode into a stage (decode.py): a warpgroup has 128 of the tokens, as
two chunks of 64, and all weight rows.

What is decoded serves twice as many tokens as in a tile of 128 (decoded_share.py), whose sums take as many registers.

waits     full, per stage
signals   empty, per warp and stage
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import wgmma
from ...device.memory import load_shared_f32
from ...device.ring import Stage
from .decoded_share import DecodedShare
from .math_thread import MathThread, PromotedSums
from .tokens_as_m import CHUNK_ROWS, GROUP_ROWS, ROW_BYTES

TOKEN_CHUNKS = 2


@dataclass(frozen=True)
class DecodedRows(DecodedShare):
    """The share of a thread; parts of its sums are chunks of 64 tokens, of which `chunk` is the one that its addresses are of."""

    chunk: cutlass.Constexpr[int]

    @staticmethod
    def of(me: MathThread) -> DecodedRows:  # type: ignore[override]
        return DecodedRows(me.group, me.warp, me.lane, False, 1, CHUNK_ROWS, CHUNK_ROWS, None, 0)

    @property
    def first_token(self) -> Any:
        """The first of the chunk's 64 tokens."""
        return (self.group * TOKEN_CHUNKS + self.chunk) * GROUP_ROWS

    def zero(self) -> PromotedSums:
        """Sums before the first K block."""
        return PromotedSums.zero(TOKEN_CHUNKS, CHUNK_ROWS // 2)

    def parts(self, sums: Any) -> list[tuple[DecodedShare, Any]]:
        """Chunk by chunk of tokens."""
        return [(replace(self, chunk=chunk), sums[chunk : chunk + 1]) for chunk in range(TOKEN_CHUNKS)]

    @cute.jit
    def multiply(self, stage: Stage, acc: PromotedSums, scales: None, k: Int32, more: cutlass.Boolean):
        """One K block; its stage is full.  Returns the sums and the next stage, which is full if there are `more`."""
        weights = wgmma.descriptor(stage.shared("weights") >> 4)
        tokens = stage.shared("tokens") + self.first_token * ROW_BYTES
        token_scale = stage.token_scales + self.token * 4
        ((factor,),) = self.block_scales(stage, scales, k)
        following = stage.next()
        sums, partial = [], acc.partial
        for t in cutlass.range_constexpr(TOKEN_CHUNKS):
            partial = wgmma.issue(wgmma.descriptor((tokens + t * (GROUP_ROWS * ROW_BYTES)) >> 4), weights, partial)
            if cutlass.const_expr(t == 0):
                per_token = [
                    load_shared_f32(token_scale + 4 * (GROUP_ROWS * c + 8 * h)) * factor for c in range(TOKEN_CHUNKS) for h in range(2)
                ]
            if cutlass.const_expr(t == TOKEN_CHUNKS - 1):
                if more:
                    following.wait_full()
            partial = wgmma.wait(partial)
            old = acc.parts[t]
            sums.append(tuple(old[i] + partial[i] * per_token[2 * t + i // 2 % 2] for i in range(len(old))))
        self.release(stage, more)
        return PromotedSums(tuple(sums), partial), following

    def exponents(self, last: Stage) -> list[Any]:
        """Those of the weight rows, once for each chunk of tokens."""
        return super().exponents(last) * TOKEN_CHUNKS
