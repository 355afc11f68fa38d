"""The SMEM tiles through which the epilogue sends the outputs of a pass of tokens: byte offsets, once as layouts and once as the
expressions that roles use.  Results have a tile of their own (blocks/sm100/result_tile.py).

Linear1: E4M3 [tokens][64], rows of 64 bytes, SW64: what the TMA store of the Linear1 output reads.
Linear1, packed: E2M1 [tokens][64], rows of 32 bytes, SW32.
"""

from __future__ import annotations

from ...hardware.cta_pair import BLOCK_N
from ...hardware.operand_tile import CHANNELS_PER_SCALE, SW32, SW64
from ...layouts.algebra import ComposedLayout, Layout, swizzled
from ...layouts.arith import Int

FC1_CHANNELS = BLOCK_N // 2  # outputs of one CTA: a gate and an up row make one


def fc1_tile(tokens: int) -> ComposedLayout:
    return swizzled(SW64, Layout((tokens, FC1_CHANNELS), (FC1_CHANNELS, 1)))


def packed_tile(tokens: int) -> ComposedLayout:
    """(token, pair of channels) -> byte."""
    return swizzled(SW32, Layout((tokens, FC1_CHANNELS // 2), (FC1_CHANNELS // 2, 1)))


def fc1_store_address(tile: Int, token: Int, warp: Int) -> Int:
    """Address of the warp's 16 channels of a token: fc1_tile(token, 16 * warp).  SW64: the chunk of a row, XORed with bits 1 and 2 of the
    token."""
    return tile + token * FC1_CHANNELS + ((warp ^ ((token >> 1) & 3)) << 4)


def packed_token(lane: Int) -> Int:
    """Token, of the 32 of a pass, whose 16 channels of the warp a lane ends with (device/e2m1.py)."""
    return (lane & 4) * 4 + (lane >> 4) * 8 + (lane & 3) * 2 + ((lane >> 3) & 1)


def packed_store_address(tile: Int, token: Int, warp: Int) -> Int:
    """Address of the warp's 16 channels of a token, 8 bytes: packed_tile(token, 8 * warp).  SW32: half of a row, XORed with bit 2 of the
    token."""
    return tile + token * (FC1_CHANNELS // 2) + ((warp ^ ((token >> 1) & 2)) << 3)


def fc1_scale(n_block: Int, warp: Int) -> Int:
    """Index, in a row of the Linear2 pool, of the scale of the warp's channels: one per 32; two warps share it."""
    return n_block * (FC1_CHANNELS // CHANNELS_PER_SCALE) + (warp >> 1)
