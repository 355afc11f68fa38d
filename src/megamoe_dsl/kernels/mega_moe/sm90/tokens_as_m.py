"""Tiles of 128 tokens: tokens are the wgmma's rows, 64 per warpgroup, and all 256 weight rows its columns, as two chunks of 128.

Promotion needs one product of scales per row and weight block, where tokens as columns need one per token: half the instructions.  A
thread has whole rows' shares of 128 outputs, so that nothing is exchanged between warps.

L1 signals store_full; L2 signals nothing per tile (the rank barrier BEFORE_COMBINE covers all remote writes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....device import cast, wgmma
from ....device.matrix import store_b16
from ....device.mbarrier import arrive, wait
from ....device.memory import (
    fence_async_shared,
    load_f32,
    load_shared_f32,
    load_shared_v4,
    load_u64,
    store_f32,
    store_v4,
)
from ....device.ptx import emit_to
from ....device.ring import Ring
from ....device.warp import sync_warp
from ....layouts.arith import select
from ....layouts.smem_plan_sm90 import TILE_ROWS
from ..swiglu import activate
from .context import MathThread, Sm90Context, give_back
from .deal import Tile

CHUNKS = 2  # of 128 weight rows
CHUNK_BYTES = 128 * 128
ROW_BYTES = 128
WARP_ROWS = 16
PASS_CHANNELS = 64  # of an L2 tile that a warp transposes at a time: 128 bytes a row
ROWS_PER_STEP = 4  # tokens that a warp writes at a time, eight lanes each


@dataclass(frozen=True)
class Accumulator:
    """FP32 sums, and the registers of the partial sum.

    Value (4 j + 2 h + e) of chunk c: token row + 8 h, weight row 128 c + 8 j + 2 (lane % 4) + e of the tile.
    """

    parts: tuple[tuple[Float32, ...], ...]
    partial: tuple[Float32, ...]

    @staticmethod
    def zero(block_m: int) -> Accumulator:
        """The size does not depend on `block_m`, which is 128."""
        part = tuple(Float32(0.0) for _ in range(64))
        return Accumulator((part,) * CHUNKS, part)


def first_row(me: MathThread) -> Any:
    """The first of the thread's two tokens in the tile; the other is 8 further."""
    return me.group * 64 + me.warp * WARP_ROWS + me.row


def skipped_blocks(me: MathThread, tile: Tile, k_blocks: Any) -> Any:
    """K blocks that the thread's warpgroup need not multiply: all when the tile's tokens end before its half."""
    return select(tile.valid_m > me.group * 64, Int32(0), k_blocks)


@cute.jit
def multiply(ctx: Sm90Context, me: MathThread, acc: Accumulator, scales: Any, ring: Ring, k: Int32, more: cutlass.Boolean):
    """One K block; its stage is full.  Returns with the next stage full, if there are `more`."""
    tokens = wgmma.descriptor((ctx.shared("tokens", ring.index) + me.group * (64 * 128)) >> 4)
    weights = ctx.shared("weights", ring.index)
    token_scale = ctx.shared("sfa", ring.index) + first_row(me) * 4
    following = ring.next()
    first, second = scales.at(k)
    # Linear1 alternates 8 gate and 8 up rows in both chunks; in Linear2 each chunk has one scale.
    weight_scales = (
        (first, Float32(cutlass.select_(scales.is_l1, second, first))),
        (Float32(cutlass.select_(scales.is_l1, first, second)), second),
    )
    sums, partial = [], acc.partial
    for c in cutlass.range_constexpr(CHUNKS):
        partial = wgmma.issue(tokens, wgmma.descriptor((weights + c * CHUNK_BYTES) >> 4), partial)
        if cutlass.const_expr(c == 0):
            per_token = [load_shared_f32(token_scale + 32 * h) for h in range(2)]
        if cutlass.const_expr(c == CHUNKS - 1):
            if more:
                wait(ctx.barrier("full", following.index), following.phase)
        partial = wgmma.wait(partial)
        product = [[per_token[h] * scale for scale in weight_scales[c]] for h in range(2)]
        old = acc.parts[c]
        sums.append(tuple(old[i] + partial[i] * product[i // 2 % 2][i // 4 % 2] for i in range(64)))
    give_back(ctx, me, ring)
    return Accumulator(tuple(sums), partial), following


@cute.jit
def finish_l1(ctx: Sm90Context, tile: Tile, me: MathThread, acc: Any):
    """SwiGLU times the top-k weight, E4M3 with one power-of-two scale per token and 128 channels, into SMEM (article 4.5.4)."""
    row = first_row(me)
    pool_row = tile.pool_block * ctx.config.block_m + row
    words: list[list[Any]] = [[], []]
    for h in cutlass.range_constexpr(2):
        weight = load_f32(ctx.at("l1_topk_weights", pool_row + 8 * h))
        outputs = []
        for c in cutlass.range_constexpr(CHUNKS):
            for w in cutlass.range_constexpr(4):
                # Weight row 64 b + 16 w + 8 (gate, up) + 2 (lane % 4) + e is channel 16 w + 4 (lane % 4) + 2 e + b of the chunk's 64.
                starts = [4 * (8 * b + 2 * w) + 2 * h for b in range(2)]
                gates, ups = ([acc[c][s + off : s + off + 2] for s in starts] for off in (0, 4))
                values = [activate(ctx, g, u, (weight, weight)) for g, u in zip(gates, ups, strict=True)]
                outputs.append([values[b][e] for e in range(2) for b in range(2)])
        peak = reduce(cast.abs_max, [v for four in outputs for v in four])
        exponent = cast.scale_exponent(cast.max_over_quad(peak))
        inverse = cast.inverse_scale(exponent)
        if (me.lane & 3) == 0:
            store_f32(ctx.at("l2_sf", tile.n_block, pool_row + 8 * h), emit_to(Float32, "mov.b32 {}, {};", exponent << 23))
        words[h] = [cast.pack_e4m3(*(v * inverse for v in four)) for four in outputs]
    # Matrix m of a store: 8 tokens (m % 2) by the 16-byte chunk 2 i + m / 2; lane 8 m + r addresses its row r.
    token = me.group * 64 + me.warp * WARP_ROWS + (me.lane & 15)
    address = ctx.shared("cd") + token * ROW_BYTES
    for i in cutlass.range_constexpr(4):
        chunk = (me.lane >> 4) + 2 * i
        # SW128: the 16-byte chunk, XORed with the row's position among eight.
        store_b16(address + (((chunk ^ token) & 7) << 4), [words[h][2 * i + j] for j in range(2) for h in range(2)])
    fence_async_shared()
    sync_warp()
    if me.lane == 0:
        arrive(ctx.barrier("store_full"))


@cute.jit
def finish_l2(ctx: Sm90Context, tile: Tile, me: MathThread, acc: Any):
    """BF16 rows straight into the combine buffers of the tokens' ranks (article 4.5.5), each warp its own 16 tokens."""
    first = me.group * 64 + me.warp * WARP_ROWS
    valid = tile.valid_m - first
    staging = ctx.shared("cd") + first * ROW_BYTES
    write_row = me.lane & 15
    read_row = me.lane >> 3
    metadata = ctx.at("token_src_metadata", tile.pool_block * ctx.config.block_m + first + read_row)
    destinations = [load_u64(metadata + step * 8) for step in range(0, WARP_ROWS, ROWS_PER_STEP)]
    channel_bytes = Int64(tile.n_block * (2 * TILE_ROWS) + (me.lane & 7) * 16)
    for part in cutlass.range_constexpr(TILE_ROWS // PASS_CHANNELS):
        for i in cutlass.range_constexpr(4):
            chunk = (me.lane >> 4) + 2 * i
            at = [4 * (8 * (part % 2) + 2 * i + j) + 2 * h for j in range(2) for h in range(2)]
            words = [cast.pack_bf16(acc[part // 2][a], acc[part // 2][a + 1]) for a in at]
            store_b16(staging + write_row * ROW_BYTES + (((chunk ^ write_row) & 7) << 4), words)
        sync_warp()
        for i, step in enumerate(range(0, WARP_ROWS, ROWS_PER_STEP)):
            row = read_row + step
            if row < valid:
                value = load_shared_v4(staging + row * ROW_BYTES + (((me.lane ^ row) & 7) << 4))
                store_v4(destinations[i] + (channel_bytes + part * (2 * PASS_CHANNELS)), value)
        sync_warp()


__all__ = ["Accumulator", "finish_l1", "finish_l2", "multiply", "skipped_blocks"]
