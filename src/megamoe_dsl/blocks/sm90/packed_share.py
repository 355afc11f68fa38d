"""Tiles of up to 64 tokens by 256 rows of E2M1 weights, or a half or a quarter of them: weights are the wgmma's A, from registers, and
tokens its columns.

waits     full, per stage
signals   empty, per warp and stage

A warpgroup has 128 weight rows as two blocks of 64, each with a partial sum of its own, or one such block. While the tensor core
multiplies one block, the warps decode the next: the second of this K block, then the first of the following one. What they decode was
loaded half a K block before, so that nobody waits for shared memory; a stage is given back in the middle of the next one, when all that
was loaded of that has been used (docs/hopper.md, "A load that came back late"). Partial sums of 128 of K are scaled by token and tile and
added in FP32; what is left of the scales, a power of two per row, is applied once at the end.
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
from ...device.stage import Stage, release_if, release_stage
from ...hardware.packed_part import WHOLE_TILE, PackedPart
from ...hardware.packed_tile import HALF_BYTES, RECORD_BYTES, record_index, unit_of
from ...layouts.arith import select
from .math_thread import MathThread
from .promoted_sums import PromotedSums
from .tokens_as_n import load_pair

BLOCKS = 2  # of 64 weight rows per warpgroup
MOST_AHEAD = 32
"""Tokens of a tile for which a thread has registers to load all blocks of a stage ahead."""


@dataclass(frozen=True)
class PackedShare(MathThread):
    """What a thread's warpgroup has of a tile: all of its `tokens`, a multiple of 8, and 128 of the weight rows.

    table  shared address of the decoded magnitudes (device.e2m1)
    part   of a packed tile, that a stage has

    Value (4 j + 2 h + q) of an accumulator's part b: weight row 64 b + 16 warp + row + 8 h of the warpgroup's, token 8 j + pair + q.
    """

    tokens: cutlass.Constexpr[int]
    table: Int32
    part: cutlass.Constexpr[PackedPart]

    @staticmethod
    def of(me: MathThread, tokens: int, table: Any, part: PackedPart = WHOLE_TILE) -> PackedShare:
        """The share of a thread."""
        return PackedShare(me.group, me.warp, me.lane, tokens, table, part)

    @property
    def blocks(self) -> int:
        """Of 64 weight rows that the warpgroup has."""
        return BLOCKS

    @property
    def has_own_weights(self) -> bool:
        """Its warpgroup's weight rows are not the other's too."""
        return True

    @property
    def blocks_ahead(self) -> int:
        """Blocks whose codes and table entries are loaded in the stage before: all where registers last, else the first."""
        return self.blocks if self.tokens <= MOST_AHEAD else 1

    def record(self, stage: Stage) -> tuple[Any, ...]:
        """Four words: shifts of both blocks, scale of the tile, exponents of the rows."""
        index = record_index(self.group if self.part.per_tile == 1 else 0, self.warp, self.row)
        return load_shared_v4(stage.shared("weights") + (self.part.code_bytes + index * RECORD_BYTES))

    def codes(self, stage: Stage, block: int) -> tuple[Any, ...]:
        """A block's words of a full stage: per step of K of rows `row` and `row + 8`."""
        unit = self.warp * 32 + unit_of(self.lane)
        address = stage.shared("weights") + ((self.group * self.blocks + block) * (2 * HALF_BYTES) + unit * 16)
        return (*load_shared_v4(address), *load_shared_v4(address + HALF_BYTES))

    def entries(self, record: tuple[Any, ...], block: int) -> tuple[tuple[Any, Any], ...]:
        """Of the table, one for each of these words."""
        rows = rows_of_shifts(record[block])
        return tuple(entry_by_table(self.table, row, step) for step in range(wgmma.STEPS) for row in rows)

    def token_scales(self, stage: Stage, tile_scale: Any) -> list[tuple[Any, ...]]:
        """Pairs of tokens, times the scale of the tile."""
        address, factor = stage.token_scales + self.pair * 4, emit_to(Float32, "mov.b32 {}, {};", tile_scale)
        return [tuple(one * factor for one in load_pair(stage, address + 32 * j)) for j in range(self.tokens // 8)]


@dataclass(frozen=True)
class PackedBlock(PackedShare):
    """One block of 64 weight rows; `second` says whether it is the second of its group in the tile."""

    second: Boolean

    @property
    def blocks(self) -> int:
        """One."""
        return 1

    def record(self, stage: Stage) -> tuple[Any, ...]:
        """Shifts and exponents of the block in the places of the first one's."""
        first, second, scale, exponents = super().record(stage)
        return select(self.second, second, first), second, scale, select(self.second, exponents >> 16, exponents)


@dataclass(frozen=True)
class Ahead:
    """What is there of a stage before it is multiplied: its record, what `blocks_ahead` are decoded of, and the first of them decoded."""

    record: tuple[Uint32, ...]
    codes: tuple[tuple[Uint32, ...], ...]
    entries: tuple[tuple[tuple[Uint32, Uint32], ...], ...]
    first: tuple[Uint32, ...]

    @staticmethod
    def of(me: PackedShare, record: Any, codes: Any) -> Ahead:
        """What comes of a stage's record and codes."""
        entries = tuple(me.entries(record, b) for b in range(len(codes)))
        return Ahead(record, codes, entries, decode_words(codes[0], entries[0]))

    def block(self, me: PackedShare, stage: Stage, b: int) -> tuple[Any, ...]:
        """A later block's A."""
        if b < len(self.codes):
            return decode_words(self.codes[b], self.entries[b])
        return decode_words(me.codes(stage, b), me.entries(self.record, b))


def load_ahead(me: PackedShare, stage: Stage) -> tuple[Any, Any]:
    """A full stage's record and codes."""
    return me.record(stage), tuple(me.codes(stage, b) for b in range(me.blocks_ahead))


@cute.jit
def multiply_packed_tile(stage: Stage, me: PackedShare, k_blocks: Int32):
    """`k_blocks` > 0 stages, the first of them full.  Returns the sums, block by block, and the stage after the last."""
    parts = PromotedSums.zero(me.blocks, me.tokens // 2).parts
    partials = parts
    ahead = Ahead.of(me, *load_ahead(me, stage))
    for k in cutlass.range(k_blocks - 1, unroll=1):
        parts, partials, ahead, stage = multiply_stage(stage, me, parts, partials, ahead, k > 0, more=True)
    parts, _, ahead, following = multiply_stage(stage, me, parts, partials, ahead, k_blocks > 1, more=False)
    release_stage(stage, me.lane)
    return scale_rows(parts, ahead.record[3]), following


@cute.jit
def multiply_stage(
    stage: Stage, me: PackedShare, parts: Any, partials: Any, ahead: Ahead, later: cutlass.Boolean, more: cutlass.Constexpr[bool]
):
    """One K block; its stage is full, and is given back in the next one, when what has been loaded of that has been used.  Returns sums,
    registers of partial sums, what is ahead of the next stage if there are `more`, and the next stage."""
    tokens, following = wgmma.descriptor(stage.shared("tokens") >> 4), stage.next()
    fragments, started = [ahead.first], []
    for b in cutlass.range_constexpr(me.blocks):
        started.append(wgmma.issue_registers(fragments[b], tokens, partials[b]))
        if cutlass.const_expr(b + 1 < me.blocks):
            fragments.append(ahead.block(me, stage, b + 1))
        if cutlass.const_expr(b == max(me.blocks - 2, 0)):
            release_if(stage.previous(), me.lane, later)
            if cutlass.const_expr(more):
                following.wait_full()
                loaded = load_ahead(me, following)
    scales = me.token_scales(stage, ahead.record[2])
    sums, done = [], []
    for b in cutlass.range_constexpr(me.blocks):
        if cutlass.const_expr(more and b == me.blocks - 1):
            ahead = Ahead.of(me, *loaded)
        partial = wgmma.wait(started[b], me.blocks - 1 - b, fragments[b])
        sums.append(promote(parts[b], partial, scales))
        done.append(partial)
    return tuple(sums), tuple(done), ahead, following


def decode_words(codes: Any, entries: Any) -> tuple[Any, ...]:
    """A block's A: per step of K rows `row` and `row + 8`, first and second run of 4."""
    words: list[Any] = []
    for k in range(0, len(codes), 2):
        pairs = [decode(codes[k + h], entries[k + h]) for h in range(2)]
        words += [pairs[h][run ^ h] for run in range(2) for h in range(2)]
    return tuple(words)


def promote(sums: Any, partial: Any, scales: Any) -> tuple[Any, ...]:
    """sums + partial * the scale of its token."""
    return tuple(old + new * scales[i // 4][i % 2] for i, (old, new) in enumerate(zip(sums, partial, strict=True)))


def scale_rows(parts: Any, exponents: Any) -> tuple[tuple[Any, ...], ...]:
    """Sums times the power of two of their rows: UE8M0 bytes, block by block."""
    factors = [emit_to(Float32, "mov.b32 {}, {};", (exponents >> (8 * i) & Uint32(255)) << 23) for i in range(4)]
    return tuple(tuple(value * factors[2 * b + i // 2 % 2] for i, value in enumerate(part)) for b, part in enumerate(parts))
