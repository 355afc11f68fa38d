"""The SMEM tile through which results of a CTA's 128 weight rows leave, a pass of tokens at a time: byte offsets, once as a layout and once
as the expressions that a warp uses.

BF16 [tokens][128], two halves of 64 channels each, rows of 128 bytes, SW128.
"""

from __future__ import annotations

from ...hardware.cta_pair import BLOCK_N
from ...hardware.operand_tile import SW128
from ...layouts.algebra import ComposedLayout, Layout, join, swizzled
from ...layouts.arith import Int

HALF_BYTES = 128  # a row of 128 BF16 lies in SMEM as two swizzled halves
HALF_CHANNELS = HALF_BYTES // 2
PASS_ROWS = 32  # of a pass of a GEMM's epilogue


def result_tile(tokens: int) -> ComposedLayout:
    """(token, (channel, half)) -> byte of the channel's BF16."""
    channels = Layout((HALF_CHANNELS, BLOCK_N // HALF_CHANNELS), (2, tokens * HALF_BYTES))
    return swizzled(SW128, join(Layout(tokens, HALF_BYTES), channels))


def result_bytes(tokens: int) -> int:
    return tokens * BLOCK_N * 2


def write_address(tile: Int, warp: Int, lane: Int, tokens: int) -> Int:
    """That a lane gives to stmatrix: lane 8 k + c addresses 8 channels of token c, chunk 4 * warp + k of its row.

    result_tile(c, 8 * (4 * warp + k)).
    """
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
