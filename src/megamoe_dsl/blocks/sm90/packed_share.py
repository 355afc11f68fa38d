"""Tiles of up to 64 tokens by 256 rows of E2M1 weights: weights are the wgmma's A, from registers, and tokens its columns.

waits     full, per stage
signals   empty, per warp and stage

A warpgroup has 128 weight rows as two blocks of 64, each with a partial sum of its own. While the tensor core multiplies one block, the
warps decode the next: the second of this K block, then the first of the following one. Partial sums of 128 of K are scaled by token and
tile and added in FP32; what is left of the scales, a power of two per row, is applied once at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from ...device import wgmma
from ...device.e2m1 import decode, entry_by_table, rows_of_shifts
from ...device.memory import load_shared_f32x2, load_shared_v4
from ...device.ptx import emit_to
from ...device.stage import Stage, release_stage
from ...hardware.packed_tile import CODE_BYTES, HALF_BYTES, RECORD_BYTES, record_index
from .math_thread import MathThread
from .promoted_sums import PromotedSums

BLOCKS = 2  # of 64 weight rows per warpgroup


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
        index = record_index(self.group, self.warp, self.row)
        return load_shared_v4(stage.shared("weights") + (CODE_BYTES + index * RECORD_BYTES))

    def fragment(self, stage: Stage, record: tuple[Any, ...], block: int) -> tuple[Any, ...]:
        """A block's A of a full stage: per step of K rows `row` and `row + 8`, first and second run of 4."""
        codes = stage.shared("weights") + ((self.group * 2 + block) * (2 * HALF_BYTES) + (self.warp * 32 + self.lane) * 16)
        rows = rows_of_shifts(record[block])
        words: list[Any] = []
        for half in range(2):
            four = load_shared_v4(codes + half * HALF_BYTES)
            for k in range(2):
                pairs = [decode(four[2 * k + h], entry_by_table(self.table, rows[h], 2 * half + k)) for h in range(2)]
                words += [pairs[h][run] for run in range(2) for h in range(2)]
        return tuple(words)

    def token_scales(self, stage: Stage, tile_scale: Any) -> list[tuple[Any, ...]]:
        """Pairs of tokens, times the scale of the tile."""
        address, factor = stage.shared("sfa") + self.pair * 4, emit_to(Float32, "mov.b32 {}, {};", tile_scale)
        return [tuple(one * factor for one in load_shared_f32x2(address + 32 * j)) for j in range(self.tokens // 8)]


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
    partials = parts
    ahead = Ahead.of(me, stage)
    for k in cutlass.range(k_blocks, unroll=1):
        parts, partials, ahead, stage = multiply_stage(stage, me, parts, partials, ahead, k + 1 < k_blocks)
    return scale_rows(parts, ahead.record[3]), stage


@cute.jit
def multiply_stage(stage: Stage, me: PackedShare, parts: Any, partials: Any, ahead: Ahead, more: cutlass.Boolean):
    """One K block; its stage is full.  Returns sums, registers of partial sums, what is decoded of the next stage if there are `more`, and
    the next stage."""
    tokens, following = wgmma.descriptor(stage.shared("tokens") >> 4), stage.next()
    record, first = ahead.record, ahead.first
    partial = wgmma.issue_registers(first, tokens, partials[0])
    second = me.fragment(stage, record, 1)
    other = wgmma.issue_registers(second, tokens, partials[1])
    scales = me.token_scales(stage, record[2])
    partial = wgmma.wait(partial, 1, first)
    sums = promote(parts[0], partial, scales)
    if more:
        following.wait_full()
        ahead = Ahead.of(me, following)
    other = wgmma.wait(other, 0, second)
    sums = (sums, promote(parts[1], other, scales))
    release_stage(stage, me.lane)
    return sums, (partial, other), ahead, following


def promote(sums: Any, partial: Any, scales: Any) -> tuple[Any, ...]:
    """sums + partial * the scale of its token."""
    return tuple(old + new * scales[i // 4][i % 2] for i, (old, new) in enumerate(zip(sums, partial, strict=True)))


def scale_rows(parts: Any, exponents: Any) -> tuple[tuple[Any, ...], ...]:
    """Sums times the power of two of their rows: UE8M0 bytes, block by block."""
    factors = [emit_to(Float32, "mov.b32 {}, {};", (exponents >> (8 * i) & Uint32(255)) << 23) for i in range(4)]
    return tuple(tuple(value * factors[2 * b + i // 2 % 2] for i, value in enumerate(part)) for b, part in enumerate(parts))
