"""SMEM of the combine phase: per warp, two sets of slots for the top-k results of a piece of a token, and a place for the piece's sum
(article 4.5.6)."""

from __future__ import annotations

from dataclasses import dataclass

from ....recipe import BF16, BITS, COMBINE, Format
from .combine_row import CombineRow

LANE_VECTOR = 8 * 32  # channels that the lanes of a warp hold with one 16-byte vector of BF16 each
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
        """Of top-k slots, per warp: two if there is room, else one."""
        return 2 if self._largest_chunk(2) else 1

    @property
    def chunk(self) -> int:
        """Channels: the largest equal share of `hidden` that fits."""
        return self._largest_chunk(self.sets) or LANE_VECTOR

    def _largest_chunk(self, sets: int) -> int:
        """0 when nothing fits."""
        slot = self.budget // self.warps // (sets * self.topk + self.sum_slots)
        fits = (slot - self.row.scale_bytes) // self.row.value_bytes
        shares = (self.hidden // n for n in range(1, self.hidden // LANE_VECTOR + 1) if self.hidden % (n * LANE_VECTOR) == 0)
        return next((c for c in shares if c <= min(fits, LARGEST_CHUNK)), 0)

    @property
    def chunk_bytes(self) -> int:
        """Of a piece of y: `chunk` BF16 channels."""
        return Y_BYTES * self.chunk

    @property
    def part_bytes(self) -> int:
        """Of a piece of a result."""
        return self.row.value_bytes * self.chunk

    @property
    def slot_bytes(self) -> int:
        """Of a slot: a piece of a result, and its scales."""
        return self.part_bytes + self.row.scale_bytes

    @property
    def pieces(self) -> int:
        """Of a token."""
        return self.hidden // self.chunk

    @property
    def sum_slots(self) -> int:
        """That the sum takes."""
        return Y_BYTES // self.row.value_bytes

    @property
    def slots(self) -> int:
        """Of a warp: those of the sets, then those of the sum."""
        return self.sets * self.topk + self.sum_slots
