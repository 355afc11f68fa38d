"""Epilogues of tiles whose tokens are the wgmma's rows (blocks/sm90/share.py).

The 128 outputs of a token lie in the four threads of one quad, so that warps need not exchange maxima.  In a half tile they lie in two
warps, one of each warpgroup, and these two exchange their maxima.

Results of Linear2 go through SMEM pass by pass, where a warp gives each of its 16 tokens 128 bytes: 64 channels as BF16, or 128 as E4M3.
`words(i)` of a pass are what a thread gives the 16-byte chunks 2 i and 2 i + 1 of both of its rows; `ordered` makes of a chunk that is read
back what is sent.

Linear1 signals store_full; Linear2 signals nothing per tile (the rank barrier BEFORE_COMBINE covers all remote writes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....blocks.sm90.share import CHUNK_ROWS, CHUNKS, GROUP_ROWS, ROW_BYTES, WARP_ROWS, RowShare
from ....blocks.swiglu import activate
from ....device import cast
from ....device.cast import joined_pairs
from ....device.mbarrier import arrive
from ....device.memory import (
    fence_async_shared,
    load_f32,
    load_f32x2,
    load_shared_f32,
    load_shared_v4,
    store_b16,
    store_f32,
    store_shared_f32,
    store_v4,
)
from ....device.warp import over_lanes, shuffle, shuffle_xor, store_where, sync_warp
from ....hardware.operand_tile import SW128
from ..context import Context, WorkTile
from ..layouts.smem_plan import CombineRow
from ..pool import add_bias, bias_address, free_rows, weighs_bias, weight_of
from ..results import encode, joined, send_scales
from .epilogue_columns import sync_math_warps
from .memory_plan import TILE_ROWS

Parts = Sequence[Sequence[Any]]
"""Sums of a thread, chunk by chunk of 128 weight rows (blocks/sm90/share.py)."""


@dataclass(frozen=True)
class RowPass:
    """A pass of BF16 values, half of a chunk of weight rows; or a chunk as E4M3, and the exponent of each row's scale, which a quad has."""

    words: Callable[[int], list[Any]]
    ordered: Callable[[Sequence[Any]], tuple[Any, ...]] = tuple
    exponents: Sequence[Any] = ()


def result_words(acc: Parts, part: int, i: int) -> list[Any]:
    """Pairs of channels, rounded here."""
    at = [4 * (8 * (part % 2) + 2 * i + j) + 2 * h for j in range(2) for h in range(2)]
    return [cast.pack_bf16(acc[part // 2][a], acc[part // 2][a + 1]) for a in at]


def output_words(outputs: Parts, chunk: int, i: int) -> list[Any]:
    """Channels 16 i + 4 (e, b) of the 64 of a chunk, of both rows, as they are activated."""
    return [cast.pack_bf16(*row[4 * chunk + i][b::2]) for b in range(2) for row in outputs]


def pass_e4m3(acc: Parts, part: int) -> RowPass:
    """Results, rounded to BF16, then scaled by what the quad's 128 values need: codes of both rows, 16 channels a word over the quad.  A
    word has two channels of the chunk's first 8 and two of its last."""
    codes, exponents = [], []
    for h in range(2):
        words = [cast.pack_bf16(acc[part][4 * j + 2 * h], acc[part][4 * j + 2 * h + 1]) for j in range(16)]
        amax = over_lanes(cast.abs_max_bf16, reduce(cast.abs_max_bf16, words), (1, 2), shuffle_xor)
        exponents.append(cast.scale_exponent(cast.larger_of_pair(amax)))
        codes.append(encode(words, exponents[h]))
    return RowPass(lambda i: [codes[h][2 * i + j] for j in range(2) for h in range(2)], joined_pairs, exponents)


def pass_bf16(acc: Parts, part: int) -> RowPass:
    return RowPass(partial(result_words, acc, part))


ROWS_PER_STEP = 4  # tokens that a warp writes at a time, eight lanes each
STEPS = range(0, WARP_ROWS, ROWS_PER_STEP)


@dataclass(frozen=True)
class WarpRows:
    """A warp's 16 tokens of a tile, of which `valid` are there, on their way through its part of `cd`, `staging`: a lane writes chunks of
    row `write_row`, and reads from row `read_row` on."""

    valid: Int32
    staging: Int32
    write_row: Int32
    read_row: Int32

    @staticmethod
    def of(ctx: Context, tile: WorkTile, me: RowShare) -> WarpRows:
        valid = tile.valid_m - me.warp_token
        return WarpRows(valid, ctx.shared("cd") + (me.group * GROUP_ROWS + me.warp * WARP_ROWS) * ROW_BYTES, me.lane & 15, me.lane >> 3)


@cute.jit
def store_e4m3(ctx: Context, tile: WorkTile, me: RowShare, pool_row: Any, outputs: Any, peaks: Any):
    """Puts the codes of both rows into `cd`, which holds a tile for the store warp, and their scales, one power of two per token and 128
    channels, into the pool.  `peaks` are the largest of each row's values in a quad."""
    if cutlass.const_expr(me.half):
        peaks = peaks_of_row(ctx, me, peaks)
    words = []
    for h in cutlass.range_constexpr(2):
        exponent = cast.scale_exponent(peaks[h])
        inverse = cast.inverse_scale(exponent)
        if ((me.lane & 3) == 0) & (me.first_chunk == 0):
            store_f32(ctx.at("fc2_sf", tile.n_block, pool_row + 8 * h), cast.f32_of_bits(exponent << 23))
        words.append([cast.pack_e4m3(*(v * inverse for v in four)) for four in outputs[h]])
    # Matrix m of a store: 8 tokens (m % 2) by the 16-byte chunk 2 i + m / 2; lane 8 m + r addresses its row r.
    token = me.warp_token + (me.lane & 15)
    address = ctx.shared("cd") + token * ROW_BYTES
    for i in cutlass.range_constexpr(2 * me.chunks):
        chunk = (me.lane >> 4) + 2 * i + 4 * me.first_chunk
        store_b16(address + SW128.chunk(chunk, token), [words[h][2 * i + j] for j in range(2) for h in range(2)])
    fence_async_shared()  # the store warp's TMA reads `cd` through the async proxy


def store_bf16(ctx: Context, tile: WorkTile, me: RowShare, outputs: Any) -> None:
    """The same as BF16, without scales.  A tile would take as much of SMEM as a stage, so each warp stores its rows, as results are."""
    row, mine = CombineRow(ctx.config.problem.intermediate, ctx.config.problem.formats.hidden), WarpRows.of(ctx, tile, me)
    first = ctx.at("fc2_acts", ctx.config.first_row(tile.pool_block) + me.warp_token + mine.read_row)
    rows = [first + step * row.num_bytes for step in STEPS]
    channel_bytes = Int64((tile.n_block * CHUNKS + me.first_chunk) * ROW_BYTES + (me.lane & 7) * 16)
    passes = [partial(RowPass, partial(output_words, outputs, c)) for c in range(me.chunks)]
    send_passes(mine, me.lane, row, rows, channel_bytes, passes, None)


@cute.jit
def finish_fc1(ctx: Context, tile: WorkTile, me: RowShare, acc: Any):
    """SwiGLU times the top-k weight, in the format that Linear2 reads (article 4.5.4)."""
    pool_row = ctx.config.first_row(tile.pool_block) + me.token
    outputs, peaks = [], []
    for h in cutlass.range_constexpr(2):
        weight = weight_of(ctx, pool_row + 8 * h)
        values_of_row = []
        for c in cutlass.range_constexpr(me.chunks):
            for w in cutlass.range_constexpr(4):
                # Weight row 64 b + 16 w + 8 (gate, up) + 2 (lane % 4) + e is channel 16 w + 4 (lane % 4) + 2 e + b of the chunk's 64; of
                # BF16 outputs 16 w + 8 b + 2 (lane % 4) + e.
                starts = [4 * (8 * b + 2 * w) + 2 * h for b in range(2)]
                gates, ups = ([acc[c][s + off : s + off + 2] for s in starts] for off in (0, 4))
                values = [activate(ctx, g, u, (weight, weight)) for g, u in zip(gates, ups, strict=True)]
                values_of_row.append([values[b][e] for e in range(2) for b in range(2)])
        outputs.append(values_of_row)
        if cutlass.const_expr(ctx.config.scaled):
            peaks.append(cast.max_over_quad(reduce(cast.abs_max, [v for four in values_of_row for v in four])))
    if cutlass.const_expr(ctx.config.scaled):
        store_e4m3(ctx, tile, me, pool_row, outputs, peaks)
    else:
        store_bf16(ctx, tile, me, outputs)
    sync_warp()
    if me.lane == 0:
        arrive(ctx.barrier("store_full"))


@cute.jit
def peaks_of_row(ctx: Context, me: RowShare, peaks: list[Any]) -> list[Any]:
    """Maxima over both chunks, by way of SMEM: a warp of the other warpgroup, with the same tokens, has those of the other chunk."""
    mine, theirs = (ctx.shared("amax", group * 4 + me.warp, me.row) for group in (me.group, me.group ^ 1))
    sync_math_warps()
    if (me.lane & 3) == 0:
        for h in cutlass.range_constexpr(2):
            store_shared_f32(mine + 32 * h, peaks[h])
    sync_math_warps()
    return [cast.abs_max(peaks[h], load_shared_f32(theirs + 32 * h)) for h in range(2)]


@cute.jit
def finish_fc2(ctx: Context, tile: WorkTile, me: RowShare, acc: Any):
    """Results to where the context says: in the fused kernel straight into the combine buffers of the tokens' ranks (article 4.5.5).
    Each warp has its own 16 tokens, and 128 bytes of each at a time, in passes."""
    form = ctx.outputs
    mine = WarpRows.of(ctx, tile, me)
    first = ctx.config.first_row(tile.pool_block) + me.warp_token + mine.read_row
    destinations = ctx.result_rows(ctx.result_place(first), STEPS)
    value_bytes = form.row.value_bytes
    channel_bytes = Int64(tile.n_block * (value_bytes * TILE_ROWS) + me.first_chunk * (value_bytes * CHUNK_ROWS) + (me.lane & 7) * 16)
    make, channels = (pass_e4m3, CHUNK_ROWS) if form.row.scaled else (pass_bf16, CHUNK_ROWS // 2)
    passes = [partial(make, acc, part) for part in range(me.chunks * CHUNK_ROWS // channels)]
    freed = partial(free_rows, ctx, tile, me.lane, destinations)
    exponents = send_passes(mine, me.lane, form.row, destinations, channel_bytes, passes, freed)
    if cutlass.const_expr(form.row.scaled):
        for i, step in enumerate(STEPS):
            # The quad of lanes 4 r to 4 r + 3 has rows r and r + 8.
            scales = shuffle(joined([of_pass[step // 8] for of_pass in exponents]), (mine.read_row + step % 8) * 4)
            if (mine.read_row + step < mine.valid) & ((me.lane & 7) == 0):
                send = partial(send_scales, form.row, destinations[i] + channel_bytes, channel_bytes, scales, len(exponents))
                store_where(form.row.holds(channel_bytes), send)


@cute.jit
def send_passes(
    mine: WarpRows,
    lane: Int32,
    form: cutlass.Constexpr[CombineRow],
    rows: Any,
    channel_bytes: Int64,
    passes: cutlass.Constexpr[Any],
    freed: cutlass.Constexpr[Any],
):
    """A warp's 16 tokens, pass by pass through its part of `cd` to `rows`, of which a lane sends 16 bytes from `channel_bytes` on.
    `freed` is told which rows are valid, when the first pass has been made.  Returns the exponents of the passes."""
    exponents = []
    for part in cutlass.range_constexpr(len(passes)):
        passing = passes[part]()
        for i in cutlass.range_constexpr(4):
            chunk = (lane >> 4) + 2 * i
            words = passing.words(i)
            store_b16(mine.staging + mine.write_row * ROW_BYTES + SW128.chunk(chunk, mine.write_row), words)
        sync_warp()
        if cutlass.const_expr(part == 0 and freed is not None):
            freed([mine.read_row + step < mine.valid for step in STEPS])
        for i, step in enumerate(STEPS):
            row = mine.read_row + step
            if row < mine.valid:
                value = load_shared_v4(mine.staging + row * ROW_BYTES + SW128.chunk(lane, row))
                byte = channel_bytes + part * ROW_BYTES
                store_where(form.holds(byte), partial(store_v4, rows[i] + byte, passing.ordered(value)))
        sync_warp()
        exponents.append(passing.exponents)
    return exponents


def rows_with_bias(ctx: Context, tile: Any, me: Any, phase: int, acc: Any) -> tuple[tuple[Any, ...], ...]:
    """The sums of a share whose tokens are rows: a thread has two tokens, and two weight rows of every eight."""
    address = bias_address(ctx, phase, tile.expert, tile.n_block * TILE_ROWS + me.first_chunk * CHUNK_ROWS + me.pair)
    weights: list[Any] = [None, None]
    if weighs_bias(ctx, phase):
        tokens = ctx.at("fc1_topk_weights", ctx.config.first_row(tile.pool_block) + me.token)
        weights = [load_f32(tokens + 32 * h) for h in range(2)]
    out = []
    for c, part in enumerate(acc):
        values = []
        for j in range(CHUNK_ROWS // 8):
            biases = load_f32x2(address + (CHUNK_ROWS * c + 8 * j) * 4)
            values += [add_bias(ctx, phase, part[4 * j + 2 * h + e], biases[e], weights[h]) for h in range(2) for e in range(2)]
        out.append(tuple(values))
    return tuple(out)
