"""The inputs stage: tokens and top-k routing into the symmetric buffer, in one launch.  BF16 tokens become E4M3 or E2M1 with scales on the
way; those that are quantized already are copied.

waits: nothing; signals: nothing, the mega kernel follows on the same stream.

Byte-equal to `quant.quantize_e4m3` (fp8xfp4: UE8M0 per 32 channels), `quant.quantize_e2m1` (mxf4xmxf4), `quant.quantize_nvfp4` (with the
first expert's factor of x) and `quant.quantize_e4m3_f32` (fp8xfp8: FP32 amax / 448 per 128).

A warp takes 256 channels of a token at a time, or what is left of it, 8 a lane (`Chunk`); lanes that share a scale reduce its amax by
shuffles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...blocks.quantize import quantize, store_codes
from ...device.memory import (
    load_constant_u64,
    load_constant_v4,
    load_f32,
    load_u8,
    load_u32,
    store_f32,
    store_u8,
    store_u32,
    store_u64,
    store_v4,
)
from ...device.warp import store_where
from ...layouts.arith import ceil_div, div, minimum
from ...recipe import F32, ExpertFactors
from .dispatch import MASKED
from .inputs_config import CHUNK, PER_LANE, THREADS, PreDispatchConfig
from .layouts.symmetric import scale_row


def chunks_of_token(config: PreDispatchConfig) -> int:
    """The last has fewer channels where hidden is no multiple of 256."""
    return ceil_div(config.problem.hidden, CHUNK)


@dataclass(frozen=True)
class Chunk:
    """Chunk `number` of all tokens, as a lane sees it."""

    config: cutlass.Constexpr[PreDispatchConfig]
    number: Int32
    lane: Int32

    @property
    def whole(self) -> bool:
        return self.config.problem.hidden % CHUNK == 0

    @property
    def token(self) -> Any:
        return div(self.number, chunks_of_token(self.config))

    def index(self, mine: Any, count: int) -> Any:
        """Index of the chunk's `mine`-th thing of some kind among the token's, where a whole chunk has `count`."""
        return (self.number - self.token * chunks_of_token(self.config)) * count + mine

    def place(self, mine: Any, count: int, row: int) -> Any:
        """Its index among those of all tokens, where a token has `row` of them and one token follows another."""
        return Int64(self.number) * count + mine if self.whole else Int64(self.token) * row + self.index(mine, count)

    def has(self, mine: Any, count: int, row: int) -> Any:
        """Whether the token has it; Python's True where every chunk is whole."""
        return True if self.whole else self.index(mine, count) < row

    @property
    def there(self) -> Any:
        return self.has(self.lane * PER_LANE, CHUNK, self.config.problem.hidden)

    @property
    def channel(self) -> Any:
        """The lane's first, over all tokens; x has the same shape on both sides.  A lane without channels is given the token's last."""
        if self.whole:
            return Int64(self.number) * CHUNK + self.lane * PER_LANE
        hidden = self.config.problem.hidden
        return Int64(self.token) * hidden + minimum(self.index(self.lane * PER_LANE, CHUNK), hidden - PER_LANE)


ONE = 0x3F800000  # the weight of a shared expert, FP32


@cute.jit
def quantize_chunk(config: cutlass.Constexpr[PreDispatchConfig], args: Any, chunk: Int32, lane: Int32):
    """256 channels of one token by one warp; `chunk` counts over all tokens."""
    problem = config.problem
    region, mine = config.symmetric, Chunk(config, chunk, lane)
    channel = mine.channel
    words, form = load_constant_v4(args.x + channel * 2), problem.formats.activations
    factor = load_f32(args.factors + ExpertFactors._fields.index("x") * 4) if form.factor else None
    codes, scale = quantize(form, words, factor)
    store_where(mine.there, partial(store_codes, form, region.address(args.sym, "x"), channel, codes))
    if lane & (config.lanes_per_scale - 1) == 0:
        # What fills a row of scales up to a word comes of the token's last channels: a number, which has nothing to scale.
        scales = lane // config.lanes_per_scale, 32 // config.lanes_per_scale, scale_row(problem)
        index, there = mine.place(*scales), mine.has(*scales)
        if cutlass.const_expr(form.scale != F32):
            store_where(there, partial(store_u8, region.address(args.sym, "x_sf") + index, scale))
        else:
            store_where(there, partial(store_f32, region.address(args.sym, "x_sf") + index * 4, scale))


@cute.jit
def copy_chunk(config: cutlass.Constexpr[PreDispatchConfig], args: Any, chunk: Int32, lane: Int32):
    """As `quantize_chunk`, of a token that stays as it is: 8 channels a lane, and words of scales, or each where a row of
    them ends within a word."""
    region, mine = config.symmetric, Chunk(config, chunk, lane)
    channel = mine.channel
    if cutlass.const_expr(not config.problem.formats.scaled):
        place = region.address(args.sym, "x") + channel * 2
        store_where(mine.there, partial(store_v4, place, load_constant_v4(args.x + channel * 2)))
    elif cutlass.const_expr(config.problem.formats.packs_activations):
        store_where(mine.there, partial(store_u32, region.address(args.sym, "x") + channel // 2, load_u32(args.x + channel // 2)))
    else:
        store_where(mine.there, partial(store_u64, region.address(args.sym, "x") + channel, load_constant_u64(args.x + channel)))
    if cutlass.const_expr(not config.problem.formats.scaled):
        return
    form = config.problem.formats.activations
    whole_words = form.scales_of(config.problem.hidden) == scale_row(config.problem)
    if cutlass.const_expr(whole_words):
        words = form.scale_words(CHUNK)
        if lane < words:
            places = lane, words, form.scale_words(config.problem.hidden)
            word = mine.place(*places) * 4
            store_where(mine.has(*places), lambda: store_u32(region.address(args.sym, "x_sf") + word, load_u32(args.x_sf + word)))
    else:
        copy_scale_bytes(mine, region.address(args.sym, "x_sf"), args.x_sf)


@cute.jit
def copy_scale_bytes(mine: Chunk, to: Int64, source: Int64):
    """Copies scales of rows that are not whole words as they are given; what fills a row up is the token's last scale."""
    problem = mine.config.problem
    row, given, count = scale_row(problem), *map(problem.formats.activations.scales_of, (problem.hidden, CHUNK))
    index = mine.index(mine.lane, count)
    if (mine.lane < count) & (index < row):
        store_u8(to + mine.place(mine.lane, count, row), load_u8(source + Int64(mine.token) * given + minimum(index, given - 1)))


@cute.jit
def copy_routing(config: cutlass.Constexpr[PreDispatchConfig], args: Any, slot: Int32):
    """Copies the expert and the weight of one top-k slot of all tokens."""
    region = config.symmetric
    store_u64(region.address(args.sym, "topk_idx") + Int64(slot) * 8, load_constant_u64(args.topk_idx + Int64(slot) * 8))
    store_u32(region.address(args.sym, "topk_weights") + Int64(slot) * 4, load_u32(args.topk_weights + Int64(slot) * 4))


@cute.jit
def fill_routing(config: cutlass.Constexpr[PreDispatchConfig], args: Any, slot: Int32):
    """As `copy_routing`, with slots of the shared experts, and the others' numbers among all experts."""
    region, shared = config.symmetric, config.shared_experts
    slots, given = config.problem.topk, shared.routed.topk
    token = div(slot, slots)
    place = slot - token * slots
    idx, weight = Int32(MASKED), Int32(0)
    if place < given:
        at = Int64(token * given + place)
        found = load_constant_u64(args.topk_idx + at * 8)
        if (found >= 0) & (found < shared.routed.num_experts):
            idx = shared.number_of(Int32(found))
        weight = load_u32(args.topk_weights + at * 4)
    else:
        idx, weight = args.first_shared + (place - given), Int32(ONE)
    store_u64(region.address(args.sym, "topk_idx") + Int64(slot) * 8, Int64(idx))
    store_u32(region.address(args.sym, "topk_weights") + Int64(slot) * 4, weight)


WARPS = THREADS // 32


@cute.kernel
def pre_dispatch_kernel(config: cutlass.Constexpr[PreDispatchConfig], args: Any):
    """One CTA: its warps stride over the chunks of all tokens, then its threads over the top-k slots."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    chunks = args.num_tokens * chunks_of_token(config)
    for chunk in cutlass.range(cta * WARPS + (thread >> 5), chunks, config.num_sms * WARPS, unroll=1):
        if cutlass.const_expr(config.copies):
            copy_chunk(config, args, chunk, thread & 31)
        else:
            quantize_chunk(config, args, chunk, thread & 31)
    slots = args.num_tokens * config.problem.topk
    for slot in cutlass.range(cta * THREADS + thread, slots, config.num_sms * THREADS, unroll=1):
        if cutlass.const_expr(config.shared):
            fill_routing(config, args, slot)
        else:
            copy_routing(config, args, slot)
