"""Tiles whose tokens are the wgmma's rows and whose weight rows are its columns, in chunks: 128 tokens by two chunks of 128, say.

A warpgroup has 64 of the tokens and all chunks.  When a tile has no more than 64 tokens (a half tile), each of two warpgroups has all of
them and one chunk, so that neither idles.

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
from ...device.memory import load_shared_f32, load_shared_f32x2
from ...device.ring import Stage, release_stage
from ...hardware.operand_tile import ROW_BYTES
from ...layouts.arith import select
from .math_thread import MathThread, PromotedSums, WeightScales, multiply_tile

CHUNKS = 2
CHUNK_ROWS = 128
GROUP_ROWS = 64  # of a wgmma: tokens of a warpgroup
WARP_ROWS = 16


@dataclass(frozen=True)
class RowShare(MathThread):
    """The share that a thread's warpgroup has of a tile, which is a `half` tile or a whole one: tokens from `first_token` on, `chunks` of
    `chunk_rows` weight rows from `first_chunk` on.

    Value (4 j + 2 h + e) of an accumulator's part: token `token` + 8 h, weight row 8 j + 2 (lane % 4) + e of the chunk.

    split  weight rows of the warpgroup that the first row of scales is for, the others have the second; None where the scales say
           themselves which rows they are for
    """

    half: cutlass.Constexpr[bool]
    chunks: cutlass.Constexpr[int]
    chunk_rows: cutlass.Constexpr[int]
    split: cutlass.Constexpr[int | None]

    @staticmethod
    def of(me: MathThread, half: bool, chunk_rows: int = CHUNK_ROWS, chunks: int | None = None, split: int | None = None) -> RowShare:
        """The share of a thread; by default of two chunks of 128, or one of a half tile."""
        if chunks is None:
            chunks = 1 if half else CHUNKS
        return RowShare(me.group, me.warp, me.lane, half, chunks, chunk_rows, split)

    @property
    def has_own_weights(self) -> bool:
        """Whether its warpgroup alone has its 128 weight rows; else both warpgroups have all 256."""
        return self.half

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * ROW_BYTES

    @property
    def first_chunk(self) -> Any:
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
        return PromotedSums.zero(self.chunks, self.chunk_rows // 2)

    def multiply_tile(self, stage: Stage, scales: WeightScales | None, k_blocks: Int32) -> tuple[Any, Stage]:
        """`k_blocks` > 0 stages, the first of them full.  Returns the sums, part by part, and the stage after the last."""
        sums, following = multiply_tile(stage, self, scales, k_blocks)
        return sums, following

    @cute.jit
    def multiply(self, stage: Stage, acc: PromotedSums, scales: WeightScales | None, k: Int32, more: cutlass.Boolean):
        """One K block; its stage is full.  Returns the sums and the next stage, which is full if there are `more`."""
        tokens = wgmma.descriptor((stage.shared("tokens") + self.first_token * ROW_BYTES) >> 4)
        weights = stage.shared("weights") + self.first_chunk * self.chunk_bytes
        token_scale = stage.token_scales + self.token * stage.scale_step
        following = stage.next()
        weight_scales = self.block_scales(stage, scales, k)
        sums, partial = [], acc.partial
        for c in cutlass.range_constexpr(self.chunks):
            partial = wgmma.issue(tokens, wgmma.descriptor((weights + c * self.chunk_bytes) >> 4), partial)
            of_chunk = self.chunk_scales(stage, weight_scales, c)
            if cutlass.const_expr(c == 0):
                per_token = [load_shared_f32(token_scale + 8 * stage.scale_step * h) for h in range(2)]
            if cutlass.const_expr(c == self.chunks - 1):
                if more:
                    following.wait_full()
            partial = wgmma.wait(partial)
            sums.append(self.add_scaled(c, acc.parts[c], partial, per_token, of_chunk))
        self.release(stage, more)
        return PromotedSums(tuple(sums), partial), following

    def block_scales(self, stage: Stage, scales: Any, k: Any) -> tuple[tuple[Any, ...], ...]:
        """Scales of a K block, for each chunk and each kind of its weight rows."""
        return self.scales_of_chunks(scales.at(k), scales.alternating)

    def chunk_scales(self, stage: Stage, block_scales: Any, chunk: int) -> Any:
        """Those of a chunk, whose wgmmas are under way."""
        return block_scales[chunk]

    def add_scaled(self, chunk: int, sums: Any, partial: Any, token_scales: Any, scales: Any) -> tuple[Any, ...]:
        """sums + partial * token scale * weight scale, of the values of a chunk."""
        product = [[per_token * scale for scale in scales] for per_token in token_scales]
        return tuple(sums[i] + partial[i] * product[i // 2 % 2][self.kind(chunk, i // 4)] for i in range(self.chunk_rows // 2))

    def release(self, stage: Stage, more: Any) -> None:
        """Gives a stage back that has been read; whether there are `more` of the tile does not matter."""
        release_stage(stage, self.lane)

    # --- for several K blocks at a time (main_loop.py)
    def operands(self, stage: Stage, chunk: int = 0) -> tuple[Any, Any]:
        """Descriptors of a stage's tokens, and of the weights of a chunk."""
        a, b = self.mn_major
        tokens = wgmma.descriptor((stage.shared("tokens") + self.first_token * ROW_BYTES) >> 4, a)
        return tokens, wgmma.descriptor((stage.shared("weights") + (self.first_chunk + chunk) * self.chunk_bytes) >> 4, b)

    def token_scales(self, stage: Stage) -> list[Any]:
        first = stage.token_scales + self.token * stage.scale_step
        return [load_shared_f32(first + 8 * stage.scale_step * h) for h in range(2)]

    def promote(self, sums: Any, partial: Any, token_scales: list[Any], rows: list[Any]) -> tuple[Any, ...]:
        (kinds,) = self.scales_of_chunks(rows, False)
        return self.add_scaled(0, sums, partial, token_scales, kinds)

    # --- which scales
    def scales_of_chunks(self, rows: list[Any], alternating: Any) -> tuple[tuple[Any, ...], ...]:
        """The rows of scales, sorted by chunk and by kind of weight rows."""
        if self.split is not None:
            return tuple(tuple(rows[self.scale_row(c, j)] for j in self.changes(c)) for c in range(self.chunks))
        first, second = rows
        if self.has_own_weights:
            return ((first, second),)
        return (first, select(alternating, second, first)), (select(alternating, first, second), second)

    def kind(self, chunk: int, j: int) -> int:
        """Which of its chunk's scales a group of 8 weight rows has: even and odd ones differ, or those before and after the split."""
        if self.split is None:
            return j % 2
        return self.scale_row(chunk, j) - self.scale_row(chunk, 0)

    def scale_row(self, chunk: int, j: int) -> int:
        """The row of scales of a group of 8 weight rows, where a split says it."""
        assert self.split is not None
        return int(chunk * self.chunk_rows + 8 * j >= self.split)

    def changes(self, chunk: int) -> list[int]:
        """The groups of a chunk that a row of scales begins at."""
        return [j for j in range(self.chunk_rows // 8) if j == 0 or self.scale_row(chunk, j) != self.scale_row(chunk, j - 1)]


@dataclass(frozen=True)
class MnMajorShare(RowShare):
    """The same of operands that are MN-major: 64 columns of one take as many bytes as 64 rows of a K-major one."""

    majors: cutlass.Constexpr[wgmma.MnMajor]

    @property
    def mn_major(self) -> wgmma.MnMajor:  # type: ignore[override]
        return self.majors

    @staticmethod
    def like(me: RowShare, mn_major: wgmma.MnMajor) -> MnMajorShare:
        return MnMajorShare(me.group, me.warp, me.lane, me.half, me.chunks, me.chunk_rows, me.split, mn_major)


@dataclass(frozen=True)
class ColumnScaledShare(RowShare):
    """The same where each weight row has scales of its own, which lie in `sfb` of a stage."""

    @staticmethod
    def like(me: RowShare) -> ColumnScaledShare:
        return ColumnScaledShare(me.group, me.warp, me.lane, me.half, me.chunks, me.chunk_rows, me.split)

    def block_scales(self, stage: Stage, scales: Any, k: Any) -> tuple[tuple[Any, ...], ...]:
        """None: they are loaded chunk by chunk."""
        return ()

    def chunk_scales(self, stage: Stage, block_scales: Any, chunk: int) -> list[Any]:
        """Pairs, of the thread's two columns in every group of 8."""
        first = stage.shared("sfb") + ((self.first_chunk + chunk) * self.chunk_rows + self.pair) * 4
        return [load_shared_f32x2(first + 32 * j) for j in range(self.chunk_rows // 8)]

    def add_scaled(self, chunk: int, sums: Any, partial: Any, token_scales: Any, scales: Any) -> tuple[Any, ...]:
        count = self.chunk_rows // 2
        return tuple(sums[i] + partial[i] * (token_scales[i // 2 % 2] * scales[i // 4][i % 2]) for i in range(count))
