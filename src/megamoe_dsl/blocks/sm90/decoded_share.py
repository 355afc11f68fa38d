"""Tiles of E2M1 weights that other warps decode into a stage (decode.py): the main loop is that of tokens as rows (tokens_as_m.py), and a
K block has one weight scale, its tile's.

waits     full, per stage
signals   empty, per warp and stage

What is left of the scales, a power of two per weight row, is applied once at the end; so the last stage is given back when its exponents
have been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from ...device.memory import load_shared_f32, load_shared_v2
from ...device.ptx import emit_to
from ...device.stage import Stage, release_stage
from ...hardware.packed_tile import TILE_ROWS, record_index
from .math_thread import MathThread
from .tokens_as_m import CHUNK_ROWS, CHUNKS, RowShare

WARPS = 4


@dataclass(frozen=True)
class DecodedShare(RowShare):
    """The share of a thread, as a `RowShare`; all weight rows of a stage have one scale."""

    @staticmethod
    def of(me: MathThread, half: bool) -> DecodedShare:  # type: ignore[override]
        """Of two chunks of 128 weight rows, or one of a half tile."""
        return DecodedShare(me.group, me.warp, me.lane, half, 1 if half else CHUNKS, CHUNK_ROWS, TILE_ROWS)

    def block_scales(self, stage: Stage, scales: None, k: Any) -> tuple[tuple[Any, ...], ...]:
        """The stage's, for every chunk."""
        return ((load_shared_f32(stage.shared("sfb")),),) * self.chunks

    def release(self, stage: Stage, more: Any) -> None:
        """Not the last stage."""
        release_if(stage, self.lane, more)

    @cute.jit
    def scale_rows(self, parts: Any, last: Stage):
        """Sums times the powers of two of their weight rows, which are in the tile's `last` stage; gives that back."""
        exponents = last.shared("row_exponents")
        out = []
        for c in cutlass.range_constexpr(self.chunks):
            values = list(parts[c])
            for w in cutlass.range_constexpr(WARPS):
                # Of rows 64 b + 16 w + 8 h + pair + e, byte 2 b + h of word e.
                words = load_shared_v2(exponents + 4 * record_index(self.first_chunk + c, w, self.pair))
                for b in cutlass.range_constexpr(2):
                    for h in cutlass.range_constexpr(2):
                        factors = [power_of_byte(word, 2 * b + h) for word in words]
                        first = 4 * (8 * b + 2 * w + h)
                        for i in cutlass.range_constexpr(4):
                            values[first + i] = values[first + i] * factors[i % 2]
            out.append(tuple(values))
        release_stage(last, self.lane)
        return tuple(out)


@cute.jit
def release_if(stage: Stage, lane: Int32, condition: cutlass.Boolean):
    """`release_stage` under a condition."""
    if condition:
        release_stage(stage, lane)


def power_of_byte(word: Any, index: int) -> Any:
    """The power of two that a UE8M0 byte of a word stands for."""
    return emit_to(Float32, "mov.b32 {}, {};", (word >> (8 * index) & Uint32(255)) << 23)


@cute.jit
def multiply_decoded_tile(stage: Stage, me: DecodedShare, k_blocks: Int32):
    """`k_blocks` > 0 stages, the first of them full.  Returns the sums, chunk by chunk, and the stage after the last."""
    acc = me.zero()
    for k in cutlass.range(k_blocks, unroll=1):
        acc, stage = me.multiply(stage, acc, None, k, k + 1 < k_blocks)
    return me.scale_rows(acc.parts, stage.previous()), stage
