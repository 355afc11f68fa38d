"""Tiles of 256 rows of E2M1 weights: weights are the wgmma's A, from registers, and tokens its columns.

waits     full, per stage
signals   empty, per warp and stage

A warpgroup has 128 weight rows as two blocks of 64. While the tensor core multiplies one block, the warps decode the next: the second of
this K block, then the first of the following one. Partial sums of 128 of K are scaled by token and tile and added in FP32; what is left of
the scales, a power of two per row, is applied once at the end. With up to `MOST_TWO_PARTIALS` tokens both blocks have a partial sum of
their own and the tensor core always has work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from ...device import wgmma
from ...device.e2m1 import decode
from ...device.memory import load_shared_f32x2, load_shared_v4
from ...device.ptx import emit_to, emit_to_many
from ...device.stage import Stage, release_stage
from ...hardware.packed_tile import CODE_BYTES, RECORD_BYTES
from .math_thread import MathThread
from .promoted_sums import PromotedSums

BLOCKS = 2  # of 64 weight rows per warpgroup
STEPS = 4  # of 32 of K
HALF_BYTES = 128 * 16  # of a warpgroup's codes: two steps of a block
SHIFT_MASK = 0x78787878
MOST_TWO_PARTIALS = 32
MOST_AHEAD = 96
FEW_TOKENS = 32  # whose scales are multiplied sooner than the tile's is looked at
ONE = 0x3F800000  # FP32


@dataclass(frozen=True)
class PackedShare(MathThread):
    """What a thread's warpgroup has of a tile: all of its `tokens`, a multiple of 8, and 128 of the weight rows.

    table  shared address of the decoded magnitudes (device.e2m1)

    Value (4 j + 2 h + q) of an accumulator's part b: weight row 64 b + 16 warp + row + 8 h of the warpgroup's, token 8 j + pair + q.
    """

    tokens: cutlass.Constexpr[int]
    table: Int32

    @staticmethod
    def of(me: MathThread, tokens: int, table: Any) -> PackedShare:
        """The share of a thread."""
        return PackedShare(me.group, me.warp, me.lane, tokens, table)

    @property
    def has_own_weights(self) -> bool:
        """Its warpgroup's weight rows are not the other's too."""
        return True

    def record(self, stage: Stage) -> tuple[Any, ...]:
        """Four words: shifts of both blocks, scale of the tile, exponents of the rows."""
        index = (self.group * 4 + self.warp) * 8 + self.row
        return load_shared_v4(stage.shared("weights") + (CODE_BYTES + index * RECORD_BYTES))

    def fragment(self, stage: Stage, record: tuple[Any, ...], block: int) -> tuple[Any, ...]:
        """Block's A of a full stage: per step of K rows `row` and `row + 8`, first and second run of 4."""
        return self.half_fragment(stage, record, block, 0) + self.half_fragment(stage, record, block, 1)

    def half_fragment(self, stage: Stage, record: tuple[Any, ...], block: int, half: int) -> tuple[Any, ...]:
        """Of two steps of K."""
        codes = stage.shared("weights") + ((self.group * 2 + block) * (2 * HALF_BYTES) + (self.warp * 32 + self.lane) * 16)
        shifts = record[block]
        rows = [shifts & Uint32(SHIFT_MASK), ((shifts >> 4) | (shifts << 28)) & Uint32(SHIFT_MASK)]
        four = load_shared_v4(codes + half * HALF_BYTES)
        words: list[Any] = []
        for k in range(2):
            pairs = [decode(four[2 * k + h], self.entry(rows[h], 2 * half + k)) for h in range(2)]
            words += [pairs[h][run] for run in range(2) for h in range(2)]
        return tuple(words)

    def entry(self, shifts: Any, step: int) -> tuple[Any, Any]:
        """Of the table, for a row's step of K."""
        offset = emit_to(Uint32, "prmt.b32 {}, {}, 0, {};", shifts, 0x4440 + step)
        return emit_to_many([Uint32] * 2, "ld.shared.v2.b32 {{{}, {}}}, [{}];", self.table + Int32(offset))

    @property
    def partials(self) -> int:
        """Partial sums at a time."""
        return 2 if self.tokens <= MOST_TWO_PARTIALS else 1

    @property
    def ahead(self) -> bool:
        """Whether there are registers for a block of weights beside the one that is multiplied."""
        return self.tokens <= MOST_AHEAD

    def token_scales(self, stage: Stage, tile_scale: Any, first: int = 0, pairs: int = 0) -> Any:
        """Pairs of tokens, from pair number `first` of the thread on; times the scale of the tile, which nearly always is 1."""
        address = stage.shared("sfa") + self.pair * 4
        loaded = tuple(load_shared_f32x2(address + 32 * j) for j in range(first, first + (pairs or self.tokens // 8)))
        if self.tokens > FEW_TOKENS:
            return unless_one(loaded, tile_scale)
        factor = emit_to(Float32, "mov.b32 {}, {};", tile_scale)
        return tuple(tuple(one * factor for one in pair) for pair in loaded)


@cute.jit
def unless_one(scales: Any, tile_scale: Uint32):
    """The scales times that of the tile."""
    if tile_scale != Uint32(ONE):
        factor = emit_to(Float32, "mov.b32 {}, {};", tile_scale)
        scales = tuple(tuple(one * factor for one in pair) for pair in scales)
    return scales


@dataclass(frozen=True)
class Ahead:
    """What is decoded before it is multiplied: the record of a stage, and its first block."""

    record: tuple[Uint32, ...]
    first: tuple[Uint32, ...]

    @staticmethod
    def of(me: PackedShare, stage: Stage) -> Ahead:
        """Of a full stage."""
        record = me.record(stage)
        return Ahead(record, me.fragment(stage, record, 0))


@cute.jit
def multiply_packed_tile(stage: Stage, me: PackedShare, k_blocks: Int32):
    """`k_blocks` > 0 stages, the first of them full.  Returns the sums, block by block, and the stage after the last."""
    parts = PromotedSums.zero(BLOCKS, me.tokens // 2).parts
    spare = PromotedSums.zero(me.partials, me.tokens // 2).parts
    if cutlass.const_expr(me.ahead):
        ahead = Ahead.of(me, stage)
        for k in cutlass.range(k_blocks, unroll=1):
            parts, spare, ahead, stage = multiply_ahead(stage, me, parts, spare, ahead, k + 1 < k_blocks)
        exponents = ahead.record[3]
    else:
        exponents = Uint32(0)
        for k in cutlass.range(k_blocks, unroll=1):
            parts, spare, exponents, stage = multiply_in_turn(stage, me, parts, spare, k + 1 < k_blocks)
    return scale_rows(parts, exponents), stage


@cute.jit
def multiply_ahead(stage: Stage, me: PackedShare, parts: Any, spare: Any, ahead: Ahead, more: cutlass.Boolean):
    """One K block; its stage is full.  Returns sums, registers of partial sums, what is decoded of the next stage if there are `more`, and
    the next stage."""
    tokens, following = wgmma.descriptor(stage.shared("tokens") >> 4), stage.next()
    record, first = ahead.record, ahead.first
    partial = wgmma.issue_registers(first, tokens, spare[0])
    if cutlass.const_expr(me.partials == 2):
        second = me.fragment(stage, record, 1)
        other = wgmma.issue_registers(second, tokens, spare[1])
        scales = me.token_scales(stage, record[2])
        partial = wgmma.wait(partial, 1, first)
        sums = promote(parts[0], partial, scales)
    else:
        second = first
        if record[3] != Uint32(0):  # always: a block of its own, lest its instructions get between those of the tensor core
            second = me.fragment(stage, record, 1)
        partial = wgmma.wait(partial, 0, first)
        scales = me.token_scales(stage, record[2])
        sums = promote(parts[0], partial, scales)
        other = wgmma.issue_registers(second, tokens, partial)
    if more:
        following.wait_full()
        ahead = Ahead.of(me, following)
    other = wgmma.wait(other, 0, second)
    if cutlass.const_expr(me.partials == 1):
        scales = me.token_scales(stage, record[2])
    sums = (sums, promote(parts[1], other, scales))
    release_stage(stage, me.lane)
    return sums, (partial, other)[-me.partials :], ahead, following


@cute.jit
def multiply_in_turn(stage: Stage, me: PackedShare, parts: Any, spare: Any, more: cutlass.Boolean):
    """One K block, a block of weights after the other: meanwhile the tensor core has the other warpgroup's.  Returns sums, registers of the
    partial sum, exponents of the rows, and the next stage."""
    tokens, following = wgmma.descriptor(stage.shared("tokens") >> 4), stage.next()
    record, partial = me.record(stage), spare[0]
    sums: list[Any] = []
    for b in cutlass.range_constexpr(BLOCKS):
        a = me.fragment(stage, record, b)
        partial = wgmma.issue_registers(a, tokens, partial)
        if cutlass.const_expr(b == BLOCKS - 1):
            if more:
                following.wait_full()
        partial = wgmma.wait(partial, 0, a)
        part: tuple[Any, ...] = ()
        for first in cutlass.range_constexpr(0, me.tokens // 8, 8):
            some = slice(4 * first, 4 * first + 32)
            part += promote(parts[b][some], partial[some], me.token_scales(stage, record[2], first, 8))
        sums.append(part)
    release_stage(stage, me.lane)
    return tuple(sums), (partial,), record[3], following


def promote(sums: Any, partial: Any, scales: Any) -> tuple[Any, ...]:
    """sums + partial * the scale of its token."""
    return tuple(old + new * scales[i // 4][i % 2] for i, (old, new) in enumerate(zip(sums, partial, strict=True)))


def scale_rows(parts: Any, exponents: Any) -> tuple[tuple[Any, ...], ...]:
    """Sums times the power of two of their rows: UE8M0 bytes, block by block."""
    factors = [emit_to(Float32, "mov.b32 {}, {};", (exponents >> (8 * i) & Uint32(255)) << 23) for i in range(4)]
    return tuple(tuple(value * factors[2 * b + i // 2 % 2] for i, value in enumerate(part)) for b, part in enumerate(parts))
