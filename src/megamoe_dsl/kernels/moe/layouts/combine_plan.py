"""SMEM of the combine phase: per warp, two sets of slots for the top-k results of a piece of a token, and a place for the piece's sum
(article 4.5.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....layouts.arith import Int, align, ceil_div, div, minimum, select
from ....recipe import BF16, BITS, COMBINE, Format
from .tile import TILE_ROWS

VECTOR = 8  # channels: BF16 in 16 bytes
LANES = 32
LANE_VECTOR = VECTOR * LANES  # channels that the lanes of a warp hold with one 16-byte vector of BF16 each
LARGEST_CHUNK = 1024  # channels: 32 FP32 sums a lane; the smaller the pieces, the more warps share the work of few tokens
BUDGET = 212 * 1024  # bytes of a CTA, less than the tiles have taken there before
Y_BYTES = BITS[BF16] // 8


@dataclass(frozen=True)
class CombinePlan:
    """A warp sums a piece of `chunk` channels of one token at a time.  All its top-k results are loaded at once, into one of `sets` sets
    of slots: with two, the next piece loads while this one is summed.  A slot has the piece's values, and all scales of the token's
    result if `results` have scales; the sum, BF16, takes as many slots as it needs.  All of it fits `budget` bytes."""

    hidden: int
    topk: int
    warps: int
    results: Format = COMBINE[BF16]
    budget: int = BUDGET

    @property
    def row(self) -> CombineRow:
        """What a slot has a piece of."""
        return CombineRow(self.hidden, self.results)

    @property
    def sets(self) -> int:
        """Sets of top-k slots that a warp has: two if there is room, else one."""
        return 2 if self._largest_chunk(2) else 1

    @property
    def chunk(self) -> int:
        """Channels: the largest share of `hidden` that fits, all of them equal but for the last where `hidden` is no multiple of 256."""
        return self._largest_chunk(self.sets) or LANE_VECTOR

    def _largest_chunk(self, sets: int) -> int:
        slot = self.budget // self.warps // (sets * self.topk + self.sum_slots)
        fits = (slot - self.row.scale_bytes) // self.row.value_bytes
        vectors = ceil_div(self.hidden, LANE_VECTOR)
        exact = self.hidden % LANE_VECTOR == 0
        shares = (ceil_div(vectors, n) * LANE_VECTOR for n in range(1, vectors + 1) if vectors % n == 0 or not exact)
        return next((c for c in shares if c <= min(fits, LARGEST_CHUNK)), 0)

    @property
    def chunk_bytes(self) -> int:
        return Y_BYTES * self.chunk

    @property
    def part_bytes(self) -> int:
        return self.row.value_bytes * self.chunk

    @property
    def slot_bytes(self) -> int:
        """Bytes of a piece of a result, and of its scales."""
        return self.part_bytes + self.row.scale_bytes

    @property
    def pieces(self) -> int:
        return ceil_div(self.hidden, self.chunk)

    @property
    def last_chunk(self) -> int:
        """Channels of a token's last piece."""
        return self.hidden - (self.pieces - 1) * self.chunk

    def channels(self, part: Int) -> Int:
        return self.chunk if self.last_chunk == self.chunk else select(part == self.pieces - 1, self.last_chunk, self.chunk)

    def place(self, lane: Int, vector: int, channels: Int) -> tuple[Int, int]:
        """(lane, vector) where a lane finds its vector in a slot that has so many channels of a piece; one that has none reads the last."""
        if self.last_chunk == self.chunk:
            return lane, vector
        return minimum(lane + vector * LANES, div(channels, VECTOR) - 1), 0

    @property
    def sum_slots(self) -> int:
        return Y_BYTES // self.row.value_bytes

    @property
    def slots(self) -> int:
        """Slots that a warp has: those of the sets, then those of the sum."""
        return self.sets * self.topk + self.sum_slots


def vector_address(slot: Int, lane: Int, vector: int, value_bytes: int = 2) -> Int:
    """Address of a lane's vector in a slot with `value_bytes` per channel: the lane has channels [256 vector + 8 lane, + 8)."""
    return slot + lane * (value_bytes * VECTOR) + vector * (value_bytes * VECTOR * LANES)


LINE = 128  # bytes: a row with scales takes whole lines, so that the values of a tile, 128 bytes or 256, come in whole lines too
BULK = 16  # bytes: bulk copies move multiples


@dataclass(frozen=True)
class CombineRow:
    """`hidden` values, then, where the format has any, their scales, a byte each."""

    hidden: int
    format: Format

    @property
    def scaled(self) -> bool:
        return self.format.scale is not None

    def holds(self, byte: Int) -> Any:
        """Whether this byte of a tile of Linear2, counted in the row, is one of the row's values: rows of weights that fill the last tile
        up give others.  Python's True where no tile has such."""
        return True if self.hidden % TILE_ROWS == 0 else byte < self.first_scale

    @property
    def value_bytes(self) -> int:
        return self.format.element_bits // 8

    @property
    def first_scale(self) -> int:
        """Byte of the row's first scale."""
        return self.format.row_bytes(self.hidden)

    @property
    def scale_bytes(self) -> int:
        """Bytes of all scales, and what a bulk copy of them moves besides; 0 without scales."""
        return align(self.format.scales_of(self.hidden), BULK) if self.scaled else 0

    @property
    def num_bytes(self) -> int:
        """From one row to the next."""
        return align(self.first_scale + self.scale_bytes, LINE) if self.scaled else self.first_scale
