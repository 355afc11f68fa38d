"""Tiles of up to 64 tokens by 256 rows of E2M1 weights, or a half or a quarter of them: weights are the wgmma's A, from registers, and
tokens its columns.

waits     full, per stage
signals   empty, per warp and stage

While the tensor core multiplies a block of 64 weight rows, the warps decode the next.  Partial sums of 128 of K are scaled by token and
tile and added in FP32; what is left of the scales, a power of two per row, is applied once at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Uint32

from ...device import wgmma
from ...device.e2m1 import decode, entry_by_table, rows_of_shifts
from ...device.memory import load_shared_v4
from ...device.ptx import emit_to
from ...device.ring import Stage, release_stage
from ...hardware.packed_tile import HALF_BYTES, RECORD_BYTES, WHOLE_TILE, PackedPart, record_index, unit_of
from ...layouts.arith import select
from .math_thread import MathThread, PromotedSums
from .share import load_pair

BLOCKS = 2  # of 64 weight rows per warpgroup


@dataclass(frozen=True)
class PackedShare(MathThread):
    """What a thread's warpgroup has of a tile: all of its `tokens`, a multiple of 8, and 128 of the weight rows.

    Value (4 j + 2 h + q) of an accumulator's part b: weight row 64 b + 16 warp + row + 8 h of the warpgroup's, token 8 j + pair + q.
    """

    tokens: cutlass.Constexpr[int]
    table: Int32  # shared address of the decoded magnitudes (device.e2m1)
    part: cutlass.Constexpr[PackedPart]  # of a packed tile, that a stage has

    @staticmethod
    def of(me: MathThread, tokens: int, table: Any, part: PackedPart = WHOLE_TILE) -> PackedShare:
        return PackedShare(me.group, me.warp, me.lane, tokens, table, part)

    @property
    def blocks(self) -> int:
        return BLOCKS

    @property
    def has_own_weights(self) -> bool:
        return True

    @cute.jit
    def multiply_tile(self, stage: Stage, scales: Any, k_blocks: Int32):
        """`k_blocks` > 0 stages, the first of them full.  Returns the sums, block by block, and the stage after the last."""
        parts = PromotedSums.zero(self.blocks, self.tokens // 2).parts
        partials = parts
        ahead = Ahead.of(self, stage)
        for k in cutlass.range(k_blocks, unroll=1):
            parts, partials, ahead, stage = multiply_stage(stage, self, parts, partials, ahead, k + 1 < k_blocks)
        return scale_rows(parts, ahead.record[3]), stage

    def record(self, stage: Stage) -> tuple[Any, ...]:
        """Four words: shifts of both blocks, scale of the tile, exponents of the rows."""
        index = record_index(self.group if self.part.per_tile == 1 else 0, self.warp, self.row)
        return load_shared_v4(stage.shared("weights") + (self.part.code_bytes + index * RECORD_BYTES))

    def fragment(self, stage: Stage, record: tuple[Any, ...], block: int) -> tuple[Any, ...]:
        """A block's A of a full stage: per step of K rows `row` and `row + 8`, first and second run of 4."""
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
        address, factor = stage.token_scales + self.pair * 4, emit_to(Float32, "mov.b32 {}, {};", tile_scale)
        return [tuple(one * factor for one in load_pair(stage, address + 32 * j)) for j in range(self.tokens // 8)]


@dataclass(frozen=True)
class PackedBlock(PackedShare):
    """One block of 64 weight rows; `second` says whether it is the second of its group in the tile."""

    second: Boolean

    @property
    def blocks(self) -> int:
        return 1

    def record(self, stage: Stage) -> tuple[Any, ...]:
        """Shifts and exponents of the block in the places of the first one's."""
        first, second, scale, exponents = super().record(stage)
        return select(self.second, second, first), second, scale, select(self.second, exponents >> 16, exponents)


@dataclass(frozen=True)
class Ahead:
    """What is decoded before it is multiplied: the record of a stage, and its first block."""

    record: tuple[Uint32, ...]
    first: tuple[Uint32, ...]

    @staticmethod
    def of(me: PackedShare, stage: Stage) -> Ahead:
        record = me.record(stage)
        return Ahead(record, me.fragment(stage, record, 0))


@cute.jit
def multiply_stage(stage: Stage, me: PackedShare, parts: Any, partials: Any, ahead: Ahead, more: cutlass.Boolean):
    """One K block; its stage is full.  Returns sums, registers of partial sums, what is decoded of the next stage if there are `more`, and
    the next stage."""
    tokens, following = wgmma.descriptor(stage.shared("tokens") >> 4), stage.next()
    record, fragments, started = ahead.record, [ahead.first], []
    for b in cutlass.range_constexpr(me.blocks):
        started.append(wgmma.issue_registers(fragments[b], tokens, partials[b]))
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
    """Sums times the power of two of their rows: UE8M0 bytes, block by block."""
    factors = [emit_to(Float32, "mov.b32 {}, {};", (exponents >> (8 * i) & Uint32(255)) << 23) for i in range(4)]
    return tuple(tuple(value * factors[2 * b + i // 2 % 2] for i, value in enumerate(part)) for b, part in enumerate(parts))
