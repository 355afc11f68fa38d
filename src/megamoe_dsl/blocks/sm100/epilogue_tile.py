"""The SMEM tiles through which the epilogue sends the outputs of a pass of tokens: byte offsets, as the expressions that roles use.

Linear1: E4M3 [tokens][64], rows of 64 bytes, SW64; packed: E2M1 [tokens][64], rows of 32 bytes, SW32.
Results of a CTA's 128 weight rows: BF16 [tokens][128], two halves of 64 channels each, rows of 128 bytes, SW128.
"""

from __future__ import annotations

from ...hardware.cta_pair import BLOCK_N
from ...hardware.operand_tile import CHANNELS_PER_SCALE
from ...layouts.arith import Int

WARP_CHANNELS = 16  # outputs of a warp
FC1_CHANNELS = BLOCK_N // 2  # outputs of one CTA: a gate and an up row make one


def fc1_store_address(tile: Int, token: Int, warp: Int) -> Int:
    """Address of the warp's 16 channels of a token.  SW64: the chunk of a row, XORed with bits 1 and 2 of the token."""
    return tile + token * FC1_CHANNELS + ((warp ^ ((token >> 1) & 3)) << 4)


def packed_token(lane: Int) -> Int:
    """Token, of the 32 of a pass, whose 16 channels of the warp a lane ends with (device/e2m1.py)."""
    return (lane & 4) * 4 + (lane >> 4) * 8 + (lane & 3) * 2 + ((lane >> 3) & 1)


def packed_store_address(tile: Int, token: Int, warp: Int) -> Int:
    """Address of the warp's 16 channels of a token, 8 bytes.  SW32: half of a row, XORed with bit 2 of the token."""
    return tile + token * (FC1_CHANNELS // 2) + ((warp ^ ((token >> 1) & 2)) << 3)


def fc1_scale(n_block: Int, warp: Int, channels: int = CHANNELS_PER_SCALE) -> Int:
    """Index, in a row of the Linear2 pool, of the scale of the warp's channels: of 32, two warps share it, or of its own 16."""
    return n_block * (FC1_CHANNELS // channels) + (warp >> (channels // WARP_CHANNELS - 1))


HALF_BYTES = 128  # a row of 128 BF16 lies in SMEM as two swizzled halves
HALF_CHANNELS = HALF_BYTES // 2
PASS_ROWS = 32  # of a pass of a GEMM's epilogue
PASS_WARPGROUPS = 2  # that have passes of a tile in turn


def result_bytes(tokens: int) -> int:
    return tokens * BLOCK_N * 2


def write_address(tile: Int, warp: Int, lane: Int, tokens: int) -> Int:
    """What a lane gives to stmatrix: lane 8 k + c addresses 8 channels of token c, chunk 4 * warp + k of its row."""
    return chunk_address(tile, warp * 4 + (lane >> 3), lane, tokens)


def chunk_address(tile: Int, chunk: Int, token: Int, tokens: int) -> Int:
    """Address of 8 channels of one of the first eight tokens, `token` modulo 8: result_tile(token % 8, 8 * chunk)."""
    return tile + (chunk >> 3) * (tokens * HALF_BYTES) + (token & 7) * HALF_BYTES + (((chunk ^ token) & 7) << 4)


def read_row(warp: Int, lane: Int) -> Int:
    """Token of the first eight that a lane writes out: 16 lanes per token."""
    return warp * 2 + (lane >> 4)


def channel_bytes(n_block: Int, lane: Int, value_bytes: int = 2) -> Int:
    """Byte, in a row of results of so many bytes each, of the 8 channels that a lane writes out for the CTA's 128 weight rows."""
    return n_block * (value_bytes * BLOCK_N) + (lane & 15) * (value_bytes * 8)


def read_address(tile: Int, row: Int, lane: Int, tokens: int) -> Int:
    """Address of the 8 channels that a lane writes out: result_tile(row, 8 * (lane % 16))."""
    return tile + ((lane >> 3) & 1) * (tokens * HALF_BYTES) + row * HALF_BYTES + (((lane ^ row) & 7) << 4)
