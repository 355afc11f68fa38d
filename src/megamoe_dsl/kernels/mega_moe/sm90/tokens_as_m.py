"""Tiles of 128 tokens: tokens are the wgmma's rows, weight rows its columns, as two chunks of 128.

A warpgroup has 64 tokens and both chunks.  Where a tile has no more than 64 tokens it has them all and one chunk, so that neither rests.

Promotion needs one product of scales per row and weight block, where tokens as columns need one per token: half the instructions.  A
thread has whole rows' shares of 128 outputs, so that nothing is exchanged between warps; of a half tile it has half of them, and two warps
exchange their maxima.

Linear1 signals store_full; Linear2 signals nothing per tile (the rank barrier BEFORE_COMBINE covers all remote writes).
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
from ....device.memory import fence_async_shared, load_f32, load_shared_f32, load_shared_v4, load_u64, store_f32, store_shared_f32, store_v4
from ....device.ptx import emit_to
from ....device.ring import Ring
from ....device.warp import sync_warp
from ....layouts.arith import select
from ..layouts.tile import BLOCK_K
from ..swiglu import activate
from .config import Sm90Config
from .context import MathThread, Sm90Context, begin_exchange, release_stage, sync_math_warps
from .smem_plan import TILE_ROWS
from .tile_scheduler import WorkTile

CHUNKS = 2
CHUNK_ROWS = TILE_ROWS // CHUNKS
ROW_BYTES = BLOCK_K
CHUNK_BYTES = CHUNK_ROWS * ROW_BYTES
GROUP_ROWS = 64  # of a wgmma: tokens of a warpgroup
WARP_ROWS = 16
PASS_CHANNELS = 64  # of an Linear2 tile that a warp transposes at a time: 128 bytes a row
ROWS_PER_STEP = 4  # tokens that a warp writes at a time, eight lanes each


@dataclass(frozen=True)
class TileShare(MathThread):
    """What a thread's warpgroup has of a tile, of a `half` tile or a whole one: tokens from `first_token` on, chunks from `first_chunk`
    on.
    """

    half: cutlass.Constexpr[bool]

    @staticmethod
    def of(me: MathThread, half: bool) -> TileShare:
        return TileShare(me.group, me.warp, me.lane, half)

    @property
    def has_own_weights(self) -> bool:
        return self.half

    @property
    def chunks(self) -> int:
        return 1 if self.half else CHUNKS

    @property
    def first_chunk(self) -> Any:
        return self.group if self.half else 0

    @property
    def first_token(self) -> Any:
        return 0 if self.half else self.group * GROUP_ROWS

    @property
    def warp_token(self) -> Any:
        """The first of its warp's 16 tokens."""
        return self.first_token + self.warp * WARP_ROWS

    @property
    def token(self) -> Any:
        """The first of its two tokens; the other is 8 further."""
        return self.warp_token + self.row


@dataclass(frozen=True)
class Accumulator:
    """FP32 sums, and the registers of the partial sum.

    Value (4 j + 2 h + e) of a chunk: token `token` + 8 h, weight row 8 j + 2 (lane % 4) + e of the chunk.
    """

    parts: tuple[tuple[Float32, ...], ...]
    partial: tuple[Float32, ...]

    @staticmethod
    def zero(config: Sm90Config, me: TileShare) -> Accumulator:
        """Of a share; its size does not depend on the configuration."""
        part = tuple(Float32(0.0) for _ in range(64))
        return Accumulator((part,) * me.chunks, part)


@cute.jit
def multiply(ctx: Sm90Context, me: TileShare, acc: Accumulator, scales: Any, ring: Ring, k: Int32, more: cutlass.Boolean):
    """One K block; its stage is full.  Returns with the next stage full, if there are `more`."""
    tokens = wgmma.descriptor((ctx.shared("tokens", ring.index) + me.first_token * ROW_BYTES) >> 4)
    weights = ctx.shared("weights", ring.index) + me.first_chunk * CHUNK_BYTES
    token_scale = ctx.shared("sfa", ring.index) + me.token * 4
    following = ring.next()
    first, second = scales.at(k)
    weight_scales = scales_of_chunks(me, first, second, scales.is_fc1)
    sums, partial = [], acc.partial
    for c in cutlass.range_constexpr(me.chunks):
        partial = wgmma.issue(tokens, wgmma.descriptor((weights + c * CHUNK_BYTES) >> 4), partial)
        if cutlass.const_expr(c == 0):
            per_token = [load_shared_f32(token_scale + 32 * h) for h in range(2)]
        if cutlass.const_expr(c == me.chunks - 1):
            if more:
                wait(ctx.barrier("full", following.index), following.phase)
        partial = wgmma.wait(partial)
        product = [[per_token[h] * scale for scale in weight_scales[c]] for h in range(2)]
        old = acc.parts[c]
        sums.append(tuple(old[i] + partial[i] * product[i // 2 % 2][i // 4 % 2] for i in range(64)))
    release_stage(ctx, me, ring)
    return Accumulator(tuple(sums), partial), following


def scales_of_chunks(me: TileShare, first: Any, second: Any, is_fc1: Any) -> tuple[tuple[Any, Any], ...]:
    """Of each chunk's even and odd groups of 8 weight rows: Linear1 alternates 8 gate and 8 up rows, in Linear2 a chunk has one scale."""
    if me.has_own_weights:
        return ((first, second),)
    return (first, select(is_fc1, second, first)), (select(is_fc1, first, second), second)


@cute.jit
def finish_fc1(ctx: Sm90Context, tile: WorkTile, me: TileShare, acc: Any):
    """SwiGLU times the top-k weight, E4M3 with one power-of-two scale per token and 128 channels, into SMEM (article 4.5.4)."""
    pool_row = tile.pool_block * ctx.config.block_m + me.token
    outputs, peaks = [], []
    for h in cutlass.range_constexpr(2):
        weight = load_f32(ctx.at("fc1_topk_weights", pool_row + 8 * h))
        values_of_row = []
        for c in cutlass.range_constexpr(me.chunks):
            for w in cutlass.range_constexpr(4):
                # Weight row 64 b + 16 w + 8 (gate, up) + 2 (lane % 4) + e is channel 16 w + 4 (lane % 4) + 2 e + b of the chunk's 64.
                starts = [4 * (8 * b + 2 * w) + 2 * h for b in range(2)]
                gates, ups = ([acc[c][s + off : s + off + 2] for s in starts] for off in (0, 4))
                values = [activate(ctx, g, u, (weight, weight)) for g, u in zip(gates, ups, strict=True)]
                values_of_row.append([values[b][e] for e in range(2) for b in range(2)])
        outputs.append(values_of_row)
        peaks.append(cast.max_over_quad(reduce(cast.abs_max, [v for four in values_of_row for v in four])))
    if cutlass.const_expr(me.half):
        peaks = peaks_of_row(ctx, me, peaks)
    words = []
    for h in cutlass.range_constexpr(2):
        exponent = cast.scale_exponent(peaks[h])
        inverse = cast.inverse_scale(exponent)
        if ((me.lane & 3) == 0) & (me.first_chunk == 0):
            store_f32(ctx.at("fc2_sf", tile.n_block, pool_row + 8 * h), emit_to(Float32, "mov.b32 {}, {};", exponent << 23))
        words.append([cast.pack_e4m3(*(v * inverse for v in four)) for four in outputs[h]])
    # Matrix m of a store: 8 tokens (m % 2) by the 16-byte chunk 2 i + m / 2; lane 8 m + r addresses its row r.
    token = me.warp_token + (me.lane & 15)
    address = ctx.shared("cd") + token * ROW_BYTES
    for i in cutlass.range_constexpr(2 * me.chunks):
        chunk = (me.lane >> 4) + 2 * i + 4 * me.first_chunk
        # SW128: the 16-byte chunk, XORed with the row's position among eight.
        store_b16(address + (((chunk ^ token) & 7) << 4), [words[h][2 * i + j] for j in range(2) for h in range(2)])
    fence_async_shared()
    sync_warp()
    if me.lane == 0:
        arrive(ctx.barrier("store_full"))


@cute.jit
def peaks_of_row(ctx: Sm90Context, me: TileShare, peaks: list[Any]) -> list[Any]:
    """Maxima over both chunks from those of one, by way of SMEM: the other warpgroup's warp of the same tokens has the other."""
    mine, theirs = (ctx.shared("amax", group * 4 + me.warp, me.row) for group in (me.group, me.group ^ 1))
    begin_exchange()
    if (me.lane & 3) == 0:
        for h in cutlass.range_constexpr(2):
            store_shared_f32(mine + 32 * h, peaks[h])
    sync_math_warps()
    return [cast.abs_max(peaks[h], load_shared_f32(theirs + 32 * h)) for h in range(2)]


@cute.jit
def finish_fc2(ctx: Sm90Context, tile: WorkTile, me: TileShare, acc: Any):
    """BF16 rows straight into the combine buffers of the tokens' ranks (article 4.5.5), each warp its own 16 tokens."""
    valid = tile.valid_m - me.warp_token
    staging = ctx.shared("cd") + (me.group * GROUP_ROWS + me.warp * WARP_ROWS) * ROW_BYTES
    write_row = me.lane & 15
    read_row = me.lane >> 3
    metadata = ctx.at("token_src_metadata", tile.pool_block * ctx.config.block_m + me.warp_token + read_row)
    destinations = [load_u64(metadata + step * 8) for step in range(0, WARP_ROWS, ROWS_PER_STEP)]
    channel_bytes = Int64(tile.n_block * (2 * TILE_ROWS) + me.first_chunk * (2 * CHUNK_ROWS) + (me.lane & 7) * 16)
    for part in cutlass.range_constexpr(me.chunks * CHUNK_ROWS // PASS_CHANNELS):
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


__all__ = ["Accumulator", "TileShare", "finish_fc1", "finish_fc2", "multiply"]
