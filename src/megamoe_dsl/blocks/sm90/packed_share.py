"""Main loops of SM90 with E2M1 weights; partial sums of 128 of K are scaled by token and tile and added in FP32.

waits     full, per stage
signals   empty, per warp and stage

Tiles of up to 64 tokens have them as the wgmma's columns (`PackedShare`).  Its A are 256, 128 or 64 weight rows, which math warps decode
into registers: the next block of 64 rows while the tensor core multiplies the current one.

In larger tiles tokens are the wgmma's rows (`DecodedShare`).  Other warps decode weights into the stage (load.py), and a K block has one
weight scale, that of its packed tile.

Each weight row also has a power of two, which multiplies its sums once, after the K loop.  Those of decoded weights are in the last stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Uint32

from ...device import wgmma
from ...device.cast import f32_of_bits
from ...device.e2m1 import decode, entry_by_table, rows_of_shifts
from ...device.memory import load_four, load_shared_f32, load_shared_v2, load_shared_v4
from ...device.ring import Stage, release_stage
from ...device.warp import ballot, shuffle
from ...hardware.operand_tile import ROW_BYTES
from ...hardware.packed_tile import HALF_BYTES, RECORD_BYTES, TILE_ROWS, WHOLE_TILE, PackedPart, record_index, unit_of
from ...layouts.arith import select
from .share import BLOCKS, CHUNK_ROWS, CHUNKS, GROUP_ROWS, MathThread, PromotedSums, RowShare, load_pair


@dataclass(frozen=True)
class PackedShare(MathThread):
    """A warpgroup's share of a tile, as one thread sees it: all `tokens`, a multiple of 8, and 128 of the weight rows.

    Value (4 j + 2 h + q) of an accumulator's part b: weight row 64 b + 16 warp + row + 8 h of the warpgroup's, token 8 j + pair + q.
    """

    tokens: cutlass.Constexpr[int]
    table: Int32  # shared address of the decoded magnitudes (device.e2m1)
    part: cutlass.Constexpr[PackedPart]  # the part of a packed tile that a stage holds

    has_own_weights: ClassVar[bool] = True
    blocks: ClassVar[int] = BLOCKS

    @staticmethod
    def of(me: MathThread, tokens: int, table: Any, part: PackedPart = WHOLE_TILE) -> PackedShare:
        return PackedShare(me.group, me.warp, me.lane, tokens, table, part)

    @cute.jit
    def multiply_tile(self, stage: Stage, scales: Any, k_blocks: Int32):
        """Multiplies `k_blocks` > 0 stages; the first must be full.  Returns the sums, block by block, and the stage after the last."""
        parts = PromotedSums.zero(self.blocks, self.tokens // 2).parts
        partials = parts
        ahead = Ahead.of(self, stage)
        for k in cutlass.range(k_blocks, unroll=1):
            parts, partials, ahead, stage = multiply_stage(stage, self, parts, partials, ahead, k + 1 < k_blocks)
        return scale_rows(parts, ahead.record[3]), stage

    def record(self, stage: Stage) -> tuple[Any, ...]:
        """The thread's record: four words, with the shifts of both blocks, the tile's scale and the rows' exponents."""
        index = record_index(self.group if self.part.per_tile == 1 else 0, self.warp, self.row)
        return load_shared_v4(stage.shared("weights") + (self.part.code_bytes + index * RECORD_BYTES))

    def fragment(self, stage: Stage, record: tuple[Any, ...], block: int) -> tuple[Any, ...]:
        """Decodes a block's A of a full stage: per step of 32 of K rows `row` and `row + 8` of the first run of 4, then of the second."""
        unit = self.warp * 32 + unit_of(self.lane)
        codes = stage.shared("weights") + ((self.group * self.blocks + block) * (2 * HALF_BYTES) + unit * 16)
        rows = rows_of_shifts(record[block])
        words: list[Any] = []
        for half in range(2):
            four = load_shared_v4(codes + half * HALF_BYTES)
            for k in range(2):
                pairs = [decode(four[2 * k + h], entry_by_table(self.table, rows[h], 2 * half + k)) for h in range(2)]
                words += [pairs[h][run ^ h] for run in range(2) for h in range(2)]
        return tuple(words)

    def token_scales(self, stage: Stage, tile_scale: Any) -> list[tuple[Any, ...]]:
        address, factor = stage.token_scales + self.pair * 4, f32_of_bits(tile_scale)
        return [tuple(one * factor for one in load_pair(stage, address + 32 * j)) for j in range(self.tokens // 8)]


@dataclass(frozen=True)
class PackedBlock(PackedShare):
    """The share of a warpgroup with one block of 64 weight rows; `second`: it is the second block of its group."""

    second: Boolean

    blocks: ClassVar[int] = 1

    def record(self, stage: Stage) -> tuple[Any, ...]:
        """The record with the block's own shifts and exponents where those of a first block lie."""
        first, second, scale, exponents = super().record(stage)
        return select(self.second, second, first), second, scale, select(self.second, exponents >> 16, exponents)


@dataclass(frozen=True)
class Ahead:
    """A stage's record and its first block of A, which are loaded and decoded before the stage is multiplied."""

    record: tuple[Uint32, ...]
    first: tuple[Uint32, ...]

    @staticmethod
    def of(me: PackedShare, stage: Stage) -> Ahead:
        record = me.record(stage)
        return Ahead(record, me.fragment(stage, record, 0))


@cute.jit
def multiply_stage(stage: Stage, me: PackedShare, parts: Any, partials: Any, ahead: Ahead, more: cutlass.Boolean):
    """Multiplies one K block; its stage is full.  Returns sums, partial sums, the next `Ahead` and stage, full if there are `more`."""
    tokens, following = wgmma.descriptor(stage.shared("tokens") >> 4), stage.next()
    record, fragments, started = ahead.record, [ahead.first], []
    for b in cutlass.range_constexpr(me.blocks):
        started.append(wgmma.issue(fragments[b], tokens, partials[b]))
        if cutlass.const_expr(b + 1 < me.blocks):
            fragments.append(me.fragment(stage, record, b + 1))
    scales = me.token_scales(stage, record[2])
    sums, done = [], []
    for b in cutlass.range_constexpr(me.blocks):
        if cutlass.const_expr(b == me.blocks - 1):
            if more:
                following.wait_full()
                ahead = Ahead.of(me, following)
        partial = wgmma.wait(started[b], me.blocks - 1 - b, fragments[b])
        sums.append(promote(parts[b], partial, scales))
        done.append(partial)
    release_stage(stage, me.lane)
    return tuple(sums), tuple(done), ahead, following


def promote(sums: Any, partial: Any, scales: Any) -> tuple[Any, ...]:
    return tuple(old + new * scales[i // 4][i % 2] for i, (old, new) in enumerate(zip(sums, partial, strict=True)))


def scale_rows(parts: Any, exponents: Any) -> tuple[tuple[Any, ...], ...]:
    """Multiplies sums with the powers of two of their rows; `exponents` has a UE8M0 byte for each of the thread's four rows."""
    factors = [power_of_byte(exponents, i) for i in range(4)]
    return tuple(tuple(value * factors[2 * b + i // 2 % 2] for i, value in enumerate(part)) for b, part in enumerate(parts))


WARPS = 4
TOKEN_CHUNKS = 2  # of `DecodedRows`
ONES = 0x7F7F7F7F  # four UE8M0 exponents of 1


@dataclass(frozen=True)
class DecodedShare(RowShare):
    """A `RowShare` of decoded weights, of which all rows of a stage have one scale."""

    place: Any = None  # offset of the thread's tokens in a stage, if it loads them into registers, once for both chunks of weights

    @staticmethod
    def of(me: MathThread, half: bool, in_registers: bool = False) -> DecodedShare:  # type: ignore[override]
        """Makes the share: one chunk of 128 weight rows of a `half` tile, else two, for which the wgmma may take tokens `in_registers`."""
        share = DecodedShare(me.group, me.warp, me.lane, half, 1 if half else CHUNKS, CHUNK_ROWS, TILE_ROWS, wgmma.K_MAJOR)
        return replace(share, place=share.fragment_place()) if in_registers and not half else share

    def fragment_place(self) -> Any:
        """Offset in a stage of the row that the lane names to `ldmatrix` for the first 32 of K: lane 8 m + r names row r of matrix m.
        Matrices 0 and 1 are the first 16 bytes of the warp's rows 0 to 7 and 8 to 15, matrices 2 and 3 the next 16 bytes."""
        matrix, row = self.lane >> 3, self.lane & 7
        token = self.warp_token + ((matrix & 1) * 8 + row)
        # The shuffle keeps ptxas from computing this again in each K block, while the tensor core waits.
        return shuffle(token * ROW_BYTES + ((matrix >> 1 ^ row) << 4), self.lane)

    def fragment(self, stage: Stage) -> tuple[Any, ...]:
        """Loads a full stage's tokens as the wgmma's A: four words for each step of 32 of K."""
        first = stage.shared("tokens") + self.place
        return tuple(word for step in range(wgmma.STEPS) for word in load_four(first ^ (32 * step)))

    def multiply_tile(self, stage: Stage, scales: Any, k_blocks: Int32) -> tuple[Any, Stage]:
        sums, following = RowShare.multiply_tile(self, stage, scales, k_blocks)
        return self.scale_rows(sums, following.previous()), following

    def in_registers(self, stage: Stage) -> tuple[Any, ...]:
        return () if self.place is None else self.fragment(stage)

    def block_scales(self, stage: Stage, scales: None, k: Any) -> tuple[tuple[Any, ...], ...]:
        return ((load_shared_f32(stage.shared("sfb")),),) * len(self.zero().parts)

    def release(self, stage: Stage, more: Any) -> None:
        release_if(stage, self.lane, more)

    @cute.jit
    def scale_rows(self, parts: Any, last: Stage):
        """Multiplies sums with the powers of two of their weight rows, which lie in the tile's `last` stage, and releases that."""
        words = self.exponents(last)
        if ballot(reduce(or_, (word ^ Uint32(ONES) for word in words))) != 0:
            parts = self.scaled(parts, words)
        release_stage(last, self.lane)
        return parts

    def exponents(self, last: Stage) -> list[Any]:
        """Loads words of exponents, by chunk and warp: of rows `pair` and `pair + 1`, each with the rows 8, 64 and 72 further."""
        address = last.shared("row_exponents")
        places = [record_index(self.first_chunk + c, w, self.pair) for c in range(self.chunks) for w in range(WARPS)]
        return [word for place in places for word in load_shared_v2(address + 4 * place)]

    def scaled(self, parts: Any, words: list[Any]) -> tuple[tuple[Any, ...], ...]:
        """Multiplies all sums with the powers of two in the words of `exponents`."""
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
    if condition:
        release_stage(stage, lane)


def power_of_byte(word: Any, index: int) -> Any:
    return f32_of_bits((word >> (8 * index) & Uint32(255)) << 23)


@dataclass(frozen=True)
class DecodedAhead(DecodedShare):
    """A share of 64 tokens and both chunks of weight rows.  It releases a stage when the tensor core has read it, before it adds the last
    partial sums, and loads the next stage's tokens by then."""

    @staticmethod
    def of(me: MathThread) -> DecodedAhead:  # type: ignore[override]
        share = DecodedShare.of(me, half=False, in_registers=True)
        return DecodedAhead(**vars(share))

    @cute.jit
    def multiply_tile(self, stage: Stage, scales: Any, k_blocks: Int32):
        acc, tokens = self.zero(), self.fragment(stage)
        for _ in cutlass.range(k_blocks - 1, unroll=1):
            acc, tokens, stage = multiply_decoded(stage, self, acc, tokens, True)
        acc, tokens, stage = multiply_decoded(stage, self, acc, tokens, False)
        return self.scale_rows(acc.parts, stage.previous()), stage


@cute.jit
def multiply_decoded(stage: Stage, me: DecodedAhead, acc: PromotedSums, tokens: Any, more: cutlass.Constexpr[bool]):
    """Multiplies one K block with `tokens` from registers.  Returns the sums, the next stage's tokens, and that stage.  If there are no
    `more`, it releases no stage and loads no tokens."""
    scale_address, following, block_scales = me.scale_address(stage), stage.next(), me.block_scales(stage, None, 0)
    sums, partial = [], acc.partial
    for c in cutlass.range_constexpr(CHUNKS):
        ends = c == CHUNKS - 1 and more
        partial = wgmma.issue(tokens, me.operands(stage, c)[1], partial)
        if cutlass.const_expr(c == 0):
            token_scales = me.token_scales(stage, scale_address)
        if cutlass.const_expr(ends):
            following.wait_full()
        partial = wgmma.wait(partial, 0, tokens)
        if cutlass.const_expr(ends):
            release_stage(stage, me.lane)
            tokens = me.fragment(following)
        sums.append(me.promote(c, acc.parts[c], partial, token_scales, block_scales[c]))
    return PromotedSums(tuple(sums), partial), tokens, following


@dataclass(frozen=True)
class DecodedRows(DecodedShare):
    """A share of two chunks of 64 tokens and 128 weight rows; addresses and token numbers are those of chunk number `chunk`."""

    chunk: cutlass.Constexpr[int] = 0

    @property
    def first_token(self) -> Any:
        return (self.group * TOKEN_CHUNKS + self.chunk) * GROUP_ROWS

    def zero(self) -> PromotedSums:
        return PromotedSums.zero(TOKEN_CHUNKS, CHUNK_ROWS // 2)

    def parts(self, sums: Any) -> list[tuple[RowShare, Any]]:
        return [(replace(self, chunk=chunk), sums[chunk : chunk + 1]) for chunk in range(TOKEN_CHUNKS)]

    def operands(self, stage: Stage, chunk: int = 0) -> tuple[Any, Any]:
        tokens = stage.shared("tokens") + self.first_token * ROW_BYTES
        return wgmma.descriptor((tokens + chunk * (GROUP_ROWS * ROW_BYTES)) >> 4), wgmma.descriptor(stage.shared("weights") >> 4)

    def token_scales(self, stage: Stage, first: Any) -> list[Any]:
        starts = [first + GROUP_ROWS * stage.scale_step * chunk for chunk in range(TOKEN_CHUNKS)]
        return [scale for start in starts for scale in RowShare.token_scales(self, stage, start)]

    def promote(self, chunk: int, sums: Any, partial: Any, token_scales: Any, scales: Any) -> tuple[Any, ...]:
        return super().promote(0, sums, partial, token_scales[2 * chunk :], scales)

    def exponents(self, last: Stage) -> list[Any]:
        """The exponents of the weight rows, repeated for each chunk of tokens."""
        return super().exponents(last) * TOKEN_CHUNKS
