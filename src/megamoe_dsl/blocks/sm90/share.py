"""The part of a tile that an SM90 math warpgroup computes, and the K loops over it: FP8 wgmma with FP32 promotion every 128 of K.

waits     full, per stage
signals   empty, per warp and stage

Tokens are the wgmma's rows, 64 of them and all weight rows in chunks, or its columns (swap-AB), all of them and one or two blocks of 64
weight rows.  Of a half tile, no more than 64 tokens as rows, each of two warpgroups has all tokens and one chunk.

The sum of a part over 128 of K is computed in a temporary accumulator, then scaled and added in FP32, because the tensor core keeps about
14 bits.  The wait for the next stage happens while the last part is in the tensor core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ...device import wgmma
from ...device.memory import load_f32, load_shared_f32, load_shared_f32x2
from ...device.ring import Stage, release_stage
from ...device.warp import shuffle_f32
from ...hardware.operand_tile import ROW_BYTES
from ...layouts.arith import select

LANES = 32
CHUNKS = 2
CHUNK_ROWS = 128
GROUP_ROWS = 64  # of a wgmma: tokens of a warpgroup
WARP_ROWS = 16
BLOCKS = 2  # of 64 weight rows per warpgroup
BLOCK_ROWS = 64
BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES


@dataclass(frozen=True)
class MathThread:
    """`group` counts the tile's two warpgroups, `warp` the warps of a warpgroup; both are uniform in a warp."""

    group: Int32
    warp: Int32
    lane: Int32

    @property
    def pair(self) -> Any:
        """The first of the thread's two columns in every group of 8 columns of an accumulator."""
        return (self.lane & 3) * 2

    @property
    def row(self) -> Any:
        """The first of the thread's two rows among the warp's 16 rows of an accumulator; the other is 8 further."""
        return self.lane >> 2

    @cute.jit
    def multiply_tile(self: Any, stage: Stage, scales: Any, k_blocks: Int32):
        """Multiplies `k_blocks` > 0 stages with a share's `multiply`; the first must be full.  Returns the sums, one tuple for each part of
        the share, and the stage after the last."""
        acc = self.zero()
        for k in cutlass.range(k_blocks, unroll=1):
            acc, stage = self.multiply(stage, acc, scales, k, k + 1 < k_blocks)
        return acc.parts, stage

    @cute.jit
    def multiply(self: Any, stage: Stage, acc: PromotedSums, scales: Any, k: Int32, more: cutlass.Boolean):
        """Multiplies one K block; its stage is full.  Returns the sums and the next stage, which is full if there are `more`.  A share has:

        in_registers(stage)        words of the wgmma's A if it takes that from registers, else none
        operands(stage, i)         A and B of part i
        scale_address(stage)       of the first scale that `token_scales` loads from shared memory: once, for all parts, since a load for
                                   the last part alone could still be under way when the stage is released
        block_scales(stage, scales, k), part_scales(stage, block_scales, i)  scales of all weights and of part i
        promote(i, sums, partial, token_scales, part_scales)                 sums + partial sums times their scales
        """
        scale_address, following, words = self.scale_address(stage), stage.next(), self.in_registers(stage)
        block_scales = self.block_scales(stage, scales, k)
        sums, partial = [], acc.partial
        for i in cutlass.range_constexpr(len(acc.parts)):
            a, b = self.operands(stage, i)
            partial = wgmma.issue(words if len(words) else a, b, partial)
            part_scales = self.part_scales(stage, block_scales, i)
            if cutlass.const_expr(i == 0):
                token_scales = self.token_scales(stage, scale_address)
            if cutlass.const_expr(i == len(acc.parts) - 1):
                if more:
                    following.wait_full()
            partial = wgmma.wait(partial, 0, words)
            sums.append(self.promote(i, acc.parts[i], partial, token_scales, part_scales))
        self.release(stage, more)
        return PromotedSums(tuple(sums), partial), following

    def in_registers(self, stage: Stage) -> tuple[Any, ...]:
        return ()

    def part_scales(self, stage: Stage, block_scales: Any, part: int) -> Any:
        return block_scales[part]

    def release(self, stage: Stage, more: Any) -> None:
        release_stage(stage, self.lane)


@dataclass(frozen=True)
class PromotedSums:
    """A thread's sums of a tile, in `parts` that the tensor core computes in turn, and the registers of the temporary accumulator."""

    parts: tuple[tuple[Float32, ...], ...]
    partial: tuple[Float32, ...]

    @staticmethod
    def zero(parts: int, values: int) -> PromotedSums:
        part = tuple(Float32(0.0) for _ in range(values))
        return PromotedSums((part,) * parts, part)


@dataclass(frozen=True)
class ScaleMatrix:
    """f32 [row blocks, k_blocks] in global memory; `most_k_blocks` bounds `k_blocks`, which may be known at run time only."""

    address: Int64
    k_blocks: Int32
    most_k_blocks: cutlass.Constexpr[int]

    def load(self, row: Any, lane: Any) -> tuple[Float32, ...]:
        """A row of the matrix, spread over the lanes of a warp: lane l has K blocks l, l + 32, ..."""
        starts = range(0, self.most_k_blocks, LANES)
        return tuple(load_f32(self.address + Int64(row * self.k_blocks + cutlass.min(lane + s, self.k_blocks - 1)) * 4) for s in starts)


@dataclass(frozen=True)
class WeightScales:
    """One or two scales per K block, loaded before the K loop: a load in every K block would make the warp wait for it before it waits for
    the wgmma.  For as many kinds of weight rows of a warpgroup, each spread over the lanes by `ScaleMatrix.load`."""

    values: tuple[tuple[Float32, ...], ...]
    # the two kinds are gate and up, which alternate every 8 rows; if not, they are those before and after a multiple of 128
    alternating: Boolean

    def at(self, k: Any) -> list[Any]:
        out = []
        for parts in self.values:
            value = parts[0]
            for i, part in enumerate(parts[1:]):
                value = Float32(cutlass.select_(k >= LANES * (i + 1), part, value))
            out.append(shuffle_f32(value, k & (LANES - 1)))
        return out


@dataclass(frozen=True)
class RowShare(MathThread):
    """The share that a thread's warpgroup has of a tile, which is a `half` tile or a whole one: tokens from `first_token` on, `chunks` of
    `chunk_rows` weight rows from `first_chunk` on.

    Value (4 j + 2 h + e) of an accumulator's part: token `token` + 8 h, weight row 8 j + 2 (lane % 4) + e of the chunk.
    """

    half: cutlass.Constexpr[bool]
    chunks: cutlass.Constexpr[int]
    chunk_rows: cutlass.Constexpr[int]
    # weight rows of the warpgroup that the first row of scales is for, the others have the second; None where the scales say themselves
    # which rows they are for
    split: cutlass.Constexpr[int | None]
    mn_major: cutlass.Constexpr[wgmma.MnMajor]  # operands that are: 64 columns of one take as many bytes as 64 rows of a K-major one

    @staticmethod
    def of(me: MathThread, half: bool) -> RowShare:
        """A thread's share of two chunks of 128 weight rows, or of one in a half tile; both have scales of their own."""
        return RowShare(me.group, me.warp, me.lane, half, 1 if half else CHUNKS, CHUNK_ROWS, None, wgmma.K_MAJOR)

    @property
    def has_own_weights(self) -> bool:
        """Whether each warpgroup computes 128 weight rows of its own; otherwise both compute all 256."""
        return self.half

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * ROW_BYTES

    @property
    def first_chunk(self) -> Any:
        return self.group if self.half else 0

    @property
    def first_token(self) -> Any:
        return 0 if self.half else self.group * GROUP_ROWS

    @property
    def warp_token(self) -> Any:
        return self.first_token + self.warp * WARP_ROWS

    @property
    def token(self) -> Any:
        return self.warp_token + self.row

    def zero(self) -> PromotedSums:
        return PromotedSums.zero(self.chunks, self.chunk_rows // 2)

    def block_scales(self, stage: Stage, scales: Any, k: Any) -> tuple[tuple[Any, ...], ...]:
        return self.scales_of_chunks(scales.at(k), scales.alternating)

    def promote(self, chunk: int, sums: Any, partial: Any, token_scales: Any, scales: Any) -> tuple[Any, ...]:
        product = [[per_token * scale for scale in scales] for per_token in token_scales]
        return tuple(sums[i] + partial[i] * product[i // 2 % 2][self.kind(chunk, i // 4)] for i in range(self.chunk_rows // 2))

    def parts(self, sums: Any) -> list[tuple[RowShare, Any]]:
        """Pairs of a part's share and its sums: one pair."""
        return [(self, sums)]

    def operands(self, stage: Stage, chunk: int = 0) -> tuple[Any, Any]:
        a, b = self.mn_major
        tokens = wgmma.descriptor((stage.shared("tokens") + self.first_token * ROW_BYTES) >> 4, a)
        return tokens, wgmma.descriptor((stage.shared("weights") + (self.first_chunk + chunk) * self.chunk_bytes) >> 4, b)

    def scale_address(self, stage: Stage) -> Any:
        return stage.token_scales + self.token * stage.scale_step

    def token_scales(self, stage: Stage, first: Any) -> list[Any]:
        return [load_shared_f32(first + 8 * stage.scale_step * h) for h in range(2)]

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
        return j % 2 if self.split is None else self.scale_row(chunk, j) - self.scale_row(chunk, 0)

    def scale_row(self, chunk: int, j: int) -> int:
        """The row of scales of a group of 8 weight rows, where a split says it."""
        assert self.split is not None
        return int(chunk * self.chunk_rows + 8 * j >= self.split)

    def changes(self, chunk: int) -> list[int]:
        """The groups of a chunk that a row of scales begins at."""
        return [j for j in range(self.chunk_rows // 8) if j == 0 or self.scale_row(chunk, j) != self.scale_row(chunk, j - 1)]


@dataclass(frozen=True)
class ColumnScaledShare(RowShare):
    """The same where each weight row has scales of its own, which lie in `sfb` of a stage."""

    def block_scales(self, stage: Stage, scales: Any, k: Any) -> tuple[tuple[Any, ...], ...]:
        return ()

    def part_scales(self, stage: Stage, block_scales: Any, chunk: int) -> list[Any]:
        """Pairs, of the thread's two columns in every group of 8."""
        first = stage.shared("sfb") + ((self.first_chunk + chunk) * self.chunk_rows + self.pair) * 4
        return [load_shared_f32x2(first + 32 * j) for j in range(self.chunk_rows // 8)]

    def promote(self, chunk: int, sums: Any, partial: Any, token_scales: Any, scales: Any) -> tuple[Any, ...]:
        count = self.chunk_rows // 2
        return tuple(sums[i] + partial[i] * (token_scales[i // 2 % 2] * scales[i // 4][i % 2]) for i in range(count))


@dataclass(frozen=True)
class ColumnShare(MathThread):
    """The share that a thread's warpgroup has of a tile: all of its `tokens`, a multiple of 8, and `blocks` times 64 of the weight rows.

    Value (4 j + 2 h + q) of an accumulator's part b: weight row 64 b + 16 warp + row + 8 h of the warpgroup's, token 8 j + pair + q.
    """

    tokens: cutlass.Constexpr[int]
    blocks: cutlass.Constexpr[int]

    has_own_weights: ClassVar[bool] = True
    mn_major: ClassVar[wgmma.MnMajor] = wgmma.K_MAJOR

    @staticmethod
    def of(me: MathThread, tokens: int, blocks: int = BLOCKS) -> ColumnShare:
        return ColumnShare(me.group, me.warp, me.lane, tokens, blocks)

    def zero(self) -> PromotedSums:
        return PromotedSums.zero(self.blocks, self.tokens // 2)

    def block_scales(self, stage: Stage, scales: WeightScales, k: Any) -> tuple[list[Any], ...]:
        return (scales.at(k),) * self.blocks

    def operands(self, stage: Stage, block: int = 0) -> tuple[Any, Any]:
        weights = wgmma.descriptor((stage.shared("weights") + self.group * (self.blocks * BLOCK_BYTES) + block * BLOCK_BYTES) >> 4)
        return weights, wgmma.descriptor(stage.shared("tokens") >> 4)

    def scale_address(self, stage: Stage) -> Any:
        return stage.token_scales + self.pair * 4

    def token_scales(self, stage: Stage, first: Any) -> list[Any]:
        return [load_pair(stage, first + 32 * j) for j in range(self.tokens // 8)]

    def promote(self, block: int, sums: Any, partial: Any, token_scales: list[Any], rows: list[Any]) -> tuple[Any, ...]:
        """sums + partial * token scale * row scale; of the weight rows 8 further the last of the row scales."""
        out = []
        for j, per_token in enumerate(token_scales):
            for h in range(2):
                for q in range(2):
                    i = 4 * j + 2 * h + q
                    out.append(sums[i] + partial[i] * (per_token[q] * rows[h % len(rows)]))
        return tuple(out)


def load_pair(stage: Stage, address: Any) -> tuple[Any, Any]:
    """Scales of two consecutive tokens."""
    if stage.scales_in_pairs:
        first, second = load_shared_f32x2(address)
        return first, second
    return load_shared_f32(address), load_shared_f32(address + 4)


Share = RowShare | ColumnShare


@cute.jit
def multiply_ahead(stage: Stage, me: Share, scales: WeightScales, k_blocks: Int32, ahead: cutlass.Constexpr[int]):
    """The same for a share of one part, with the partial sums of up to `ahead` K blocks in the tensor core at a time, each in registers of
    its own: for tiles so narrow that a K block takes as long as its latency.  Waits for the first stage, too."""
    acc, partials = me.zero().parts, (me.zero().partial,) * ahead
    whole = k_blocks - k_blocks % ahead
    for k in cutlass.range(0, whole, ahead, unroll=1):
        acc, partials, stage = multiply_some(stage, me, acc, partials, scales, k, ahead)
    for k in cutlass.range(whole, k_blocks, 1, unroll=1):
        acc, partials, stage = multiply_some(stage, me, acc, partials, scales, k, 1)
    return acc, stage


@cute.jit
def multiply_some(stage: Stage, me: Share, acc: Any, partials: Any, scales: WeightScales, k: Int32, count: cutlass.Constexpr[int]):
    """`count` K blocks: all are issued, then one after the other is waited for, added and released."""
    stages, started, token_scales, row_scales = [], [], [], []
    for i in cutlass.range_constexpr(count):
        stage.wait_full()
        started.append(wgmma.issue(*me.operands(stage), partials[i]))
        token_scales.append(me.token_scales(stage, me.scale_address(stage)))
        row_scales.append(me.part_scales(stage, me.block_scales(stage, scales, k + i), 0))
        stages.append(stage)
        stage = stage.next()
    sums, done = acc[0], []
    for i in cutlass.range_constexpr(count):
        partial = wgmma.wait(started[i], count - 1 - i)
        sums = me.promote(0, sums, partial, token_scales[i], row_scales[i])
        release_stage(stages[i], me.lane)
        done.append(partial)
    return (sums,), (*done, *partials[count:]), stage


@cute.jit
def accumulate_tile(stage: Stage, me: Share, k_blocks: Int32, element: cutlass.Constexpr[str]):
    """Multiplies `k_blocks` > 0 stages, rows of `element`, whose operands have no scales: all of K adds up in the tensor core.  Returns the
    sums, one tuple for each part of the share, and the stage after the last.

    The wgmmas of a K block are in the tensor core when those of the next are issued; a stage is given back once the next one's have been,
    when its own are done."""
    parts = me.zero().parts
    stage.wait_full()
    sums, stage = issue_block(stage, me, parts, element, accumulate=False), stage.next()
    for _ in cutlass.range(k_blocks - 1, unroll=1):
        stage.wait_full()
        sums = issue_block(stage, me, sums, element)
        sums = wait_block(sums, len(parts))
        release_stage(stage.previous(), me.lane)
        stage = stage.next()
    sums = wait_block(sums, 0)
    release_stage(stage.previous(), me.lane)
    return sums, stage


def issue_block(stage: Stage, me: Share, sums: Any, element: str, accumulate: bool = True) -> tuple[tuple[Any, ...], ...]:
    """Starts a K block of every part, each a group of its own."""
    return tuple(wgmma.issue(*me.operands(stage, i), part, accumulate, element, me.mn_major) for i, part in enumerate(sums))


def wait_block(sums: Any, pending: int) -> tuple[tuple[Any, ...], ...]:
    """Waits until at most `pending` wgmma groups are in flight. Returns the sums, which are valid when none is."""
    values, size = wgmma.wait([one for part in sums for one in part], pending), len(sums[0])
    return tuple(values[first : first + size] for first in range(0, len(values), size))
