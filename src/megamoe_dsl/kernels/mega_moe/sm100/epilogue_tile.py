"""The SMEM tiles through which the epilogue sends a pass of tokens: byte offsets, once as layouts and once as the expressions that roles
use.

Linear1: E4M3 [tokens][64], rows of 64 bytes, SW64: what the TMA store of the Linear1 output reads.
Linear1, packed: E2M1 [tokens][64], rows of 32 bytes, SW32.
Linear2: BF16 [tokens][128], two halves of 64 channels each, rows of 128 bytes, SW128.
"""

from __future__ import annotations

from ....hardware.scale_factors import CHANNELS_PER_SCALE
from ....hardware.swizzle import SW32, SW64, SW128
from ....layouts.algebra import ComposedLayout, Layout, join, swizzled
from ....layouts.arith import Int
from .tile import BLOCK_N

FC1_CHANNELS = BLOCK_N // 2  # outputs of one CTA: a gate and an up row make one
HALF_BYTES = 128  # a row of 128 BF16 lies in SMEM as two swizzled halves
HALF_CHANNELS = HALF_BYTES // 2


def fc1_tile(tokens: int) -> ComposedLayout:
    """(token, channel) -> byte."""
    return swizzled(SW64, Layout((tokens, FC1_CHANNELS), (FC1_CHANNELS, 1)))


def packed_tile(tokens: int) -> ComposedLayout:
    """(token, pair of channels) -> byte."""
    return swizzled(SW32, Layout((tokens, FC1_CHANNELS // 2), (FC1_CHANNELS // 2, 1)))


def fc2_tile(tokens: int) -> ComposedLayout:
    """(token, (channel, half)) -> byte of the channel's BF16."""
    channels = Layout((HALF_CHANNELS, BLOCK_N // HALF_CHANNELS), (2, tokens * HALF_BYTES))
    return swizzled(SW128, join(Layout(tokens, HALF_BYTES), channels))


def fc1_store_address(tile: Int, token: Int, warp: Int) -> Int:
    """Of the warp's 16 channels of a token: fc1_tile(token, 16 * warp).  SW64: the chunk of a row, XORed with bits 1 and 2 of the token."""
    return tile + token * FC1_CHANNELS + ((warp ^ ((token >> 1) & 3)) << 4)


def packed_token(lane: Int) -> Int:
    """Token, of the 32 of a pass, whose 16 channels of the warp a lane ends with (device/e2m1_rows.py)."""
    return (lane & 4) * 4 + (lane >> 4) * 8 + (lane & 3) * 2 + ((lane >> 3) & 1)


def packed_store_address(tile: Int, token: Int, warp: Int) -> Int:
    """Of the warp's 16 channels of a token, 8 bytes: packed_tile(token, 8 * warp).  SW32: half of a row, XORed with bit 2 of the token."""
    return tile + token * (FC1_CHANNELS // 2) + ((warp ^ ((token >> 1) & 2)) << 3)


def fc1_scale(n_block: Int, warp: Int) -> Int:
    """Index, in a row of the Linear2 pool, of the scale of the warp's channels: one per 32; two warps share it."""
    return n_block * (FC1_CHANNELS // CHANNELS_PER_SCALE) + (warp >> 1)


def fc2_write_address(tile: Int, warp: Int, lane: Int, tokens: int) -> Int:
    """That a lane gives to stmatrix: lane 8 k + c addresses 8 channels of token c, chunk 4 * warp + k of its row.

    fc2_tile(c, 8 * (4 * warp + k)).
    """
    chunk = warp * 4 + (lane >> 3)
    return tile + (chunk >> 3) * (tokens * HALF_BYTES) + (lane & 7) * HALF_BYTES + (((chunk ^ lane) & 7) << 4)


def fc2_read_row(warp: Int, lane: Int) -> Int:
    """Token of the first eight that a lane writes out: 16 lanes per token."""
    return warp * 2 + (lane >> 4)


def fc2_channel_bytes(n_block: Int, lane: Int, value_bytes: int = 2) -> Int:
    """Byte, in a combine row of values of so many bytes, of the 8 channels that a lane writes out for the CTA's 128 weight rows."""
    return n_block * (value_bytes * BLOCK_N) + (lane & 15) * (value_bytes * 8)


def fc2_read_address(tile: Int, row: Int, lane: Int, tokens: int) -> Int:
    """Of the 8 channels that a lane writes out: fc2_tile(row, 8 * (lane % 16))."""
    return tile + ((lane >> 3) & 1) * (tokens * HALF_BYTES) + row * HALF_BYTES + (((lane ^ row) & 7) << 4)
