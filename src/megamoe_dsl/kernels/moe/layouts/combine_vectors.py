"""How the lanes of a combine warp share a chunk of channels: vectors of 8 channels, lane after lane."""

from __future__ import annotations

from ....layouts.algebra import Layout
from ....layouts.arith import Int

VECTOR = 8  # channels: BF16 in 16 bytes
LANES = 32


def combine_channels(chunk: int) -> Layout:
    """(lane, (element, vector)) -> channel of the chunk; element + 8 * vector is the index of the lane's FP32 sum."""
    return Layout((LANES, (VECTOR, chunk // (VECTOR * LANES))), (VECTOR, (1, VECTOR * LANES)))


def vector_address(slot: Int, lane: Int, vector: int, value_bytes: int = 2) -> Int:
    """Of a lane's vector in a slot of so many bytes per channel: combine_channels(chunk)(lane, (0, vector))."""
    return slot + lane * (value_bytes * VECTOR) + vector * (value_bytes * VECTOR * LANES)
