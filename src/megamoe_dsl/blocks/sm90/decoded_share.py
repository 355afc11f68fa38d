"""Tiles of E2M1 weights that other warps decode into a stage (decode.py): the main loop is that of tokens as rows (tokens_as_m.py), and a
K block has one weight scale, its tile's.

waits     full, per stage
signals   empty, per warp and stage

What is left of the scales, a power of two per weight row, is applied once at the end if it is not 1; so the last stage is given back when
its exponents have been read.
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
from ...device.warp import ballot
from ...hardware.packed_tile import TILE_ROWS, record_index
from .math_thread import MathThread
from .tokens_as_m import CHUNK_ROWS, CHUNKS, RowShare

WARPS = 4
ONES = 0x7F7F7F7F
"""Four exponents of powers of two that are 1."""


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
        words = self.exponents(last)
        others = Uint32(0)
        for word in words:
            others = others | (word ^ Uint32(ONES))
        if ballot(others) != 0:
            parts = self.scaled(parts, words)
        release_stage(last, self.lane)
        return parts

    def exponents(self, last: Stage) -> list[Any]:
        """Words of four weight rows: of each chunk and warp's 16 rows, rows `pair` and `pair + 1` with the three 8, 64 and 72 further."""
        address = last.shared("row_exponents")
        words: list[Any] = []
        for c in range(self.chunks):
            for w in range(WARPS):
                words += load_shared_v2(address + 4 * record_index(self.first_chunk + c, w, self.pair))
        return words

    def scaled(self, parts: Any, words: list[Any]) -> tuple[tuple[Any, ...], ...]:
        """All sums times the powers of `exponents`."""
        out = []
        for c, part in enumerate(parts):
            values = list(part)
            for w in range(WARPS):
                pair = words[2 * (c * WARPS + w) :][:2]
                for b in range(2):
                    for h in range(2):
                        factors = [power_of_byte(word, 2 * b + h) for word in pair]
                        first = 4 * (8 * b + 2 * w + h)
                        for i in range(4):
                            values[first + i] = values[first + i] * factors[i % 2]
            out.append(tuple(values))
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
