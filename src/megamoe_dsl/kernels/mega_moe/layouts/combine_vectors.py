"""How the lanes of a combine warp share a chunk of channels: vectors of 16 bytes, lane after lane."""

from __future__ import annotations

from ....layouts.algebra import Layout
from ....layouts.arith import Int

VECTOR = 8  # BF16 in 16 bytes
LANES = 32


def combine_channels(chunk: int) -> Layout:
    """(lane, (element, vector)) -> channel of the chunk; element + 8 * vector is the index of the lane's FP32 sum."""
    return Layout((LANES, (VECTOR, chunk // (VECTOR * LANES))), (VECTOR, (1, VECTOR * LANES)))


def vector_address(slot: Int, lane: Int, vector: int) -> Int:
    """Of a lane's vector in a slot: two bytes per channel, combine_channels(chunk)(lane, (0, vector))."""
    return slot + lane * (2 * VECTOR) + vector * (2 * VECTOR * LANES)
