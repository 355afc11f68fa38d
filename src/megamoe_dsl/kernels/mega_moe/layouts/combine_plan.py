"""SMEM of the combine phase: per warp, two sets of slots for the top-k results of a piece of a token, and a slot for the piece's sum
(article 4.5.6)."""

from __future__ import annotations

from dataclasses import dataclass

LANE_VECTOR = 8 * 32  # channels that the lanes of a warp hold with one 16-byte vector each
LARGEST_CHUNK = 1024  # channels: 32 FP32 sums a lane; the smaller the pieces, the more warps share the work of few tokens
BUDGET = 212 * 1024  # bytes of a CTA, less than the tiles have taken there before


@dataclass(frozen=True)
class CombinePlan:
    """A warp sums a piece of `chunk` channels of one token at a time.  All its top-k results are loaded at once, into one of `sets` sets
    of slots: with two, the next piece loads while this one is summed."""

    hidden: int
    topk: int
    warps: int

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
        fits = BUDGET // self.warps // (2 * (sets * self.topk + 1))
        shares = (self.hidden // n for n in range(1, self.hidden // LANE_VECTOR + 1) if self.hidden % (n * LANE_VECTOR) == 0)
        return next((c for c in shares if c <= min(fits, LARGEST_CHUNK)), 0)

    @property
    def chunk_bytes(self) -> int:
        """Of a slot: `chunk` BF16 channels."""
        return 2 * self.chunk

    @property
    def pieces(self) -> int:
        """Of a token."""
        return self.hidden // self.chunk

    @property
    def slots(self) -> int:
        """Of a warp: those of the sets, then the one for the sum."""
        return self.sets * self.topk + 1
