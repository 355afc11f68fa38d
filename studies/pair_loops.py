"""Main loops for pairs of CTAs with E2M1 weights beside the kernel's (blocks/sm90/decoded_ahead.py), which differ in order alone: same bits
(pair_variants.py compiles them)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from megamoe_dsl.blocks.sm90.decoded_ahead import DecodedAhead
from megamoe_dsl.blocks.sm90.decoded_share import release_if
from megamoe_dsl.blocks.sm90.promoted_sums import PromotedSums
from megamoe_dsl.blocks.sm90.tokens_as_m import CHUNKS
from megamoe_dsl.device import wgmma
from megamoe_dsl.device.memory import load_shared_f32
from megamoe_dsl.device.stage import Stage, release_stage

ORDERS: dict[str, Callable[[int], Any]] = {
    "natural": lambda i: i,
    "even_first": lambda i: (i % 2, i),
    "swap": lambda i: (i // 2 % 2, i ^ 1),
}
"""In which a chunk's sums are promoted: as they lie; even numbers before odd ones; those of one token before those of the other, and of two
neighbours the second first."""


@dataclass(frozen=True)
class Loop:
    """What of a loop is not the kernel's.

    order  one of `ORDERS`
    late   a stage is given back when the first products of the next K block have been issued
    ahead  scales and addresses of the next K block come with its tokens
    mid    sums of a K block's last product that are promoted before the next one is waited for; with `ahead` alone
    """

    order: str = "natural"
    late: bool = False
    ahead: bool = False
    mid: int = 0

    def multiply_tile(self, stage: Stage, me: DecodedAhead, k_blocks: Int32) -> Any:
        """In the place of `decoded_ahead.multiply_ahead_tile`."""
        return (multiply_tile_ahead if self.ahead else multiply_tile)(stage, me, k_blocks, self)

    def promoted(self, old: Sequence[Any], partial: Sequence[Any], scales: Sequence[Any], part: slice = slice(None)) -> dict[int, Any]:
        """A part, of this order, of a chunk's sums with its products."""
        order = sorted(range(len(old)), key=ORDERS[self.order])
        return {i: old[i] + partial[i] * scales[i // 2 % 2] for i in order[part]}


def chunk_of(*parts: dict[int, Any]) -> tuple[Any, ...]:
    """A chunk's sums of its parts."""
    sums = {i: one for part in parts for i, one in part.items()}
    return tuple(sums[i] for i in range(len(sums)))


@cute.jit
def multiply_tile(stage: Stage, me: DecodedAhead, k_blocks: Int32, loop: cutlass.Constexpr[Loop]):
    """As `multiply_ahead_tile`."""
    acc, tokens = me.zero(), me.fragment(stage)
    for k in cutlass.range(k_blocks - 1, unroll=1):
        acc, tokens, stage = multiply_stage(stage, me, acc, tokens, k, True, loop)
    acc, tokens, stage = multiply_stage(stage, me, acc, tokens, k_blocks - 1, False, loop)
    return me.scale_rows(acc.parts, stage.previous()), stage


@cute.jit
def multiply_stage(
    stage: Stage,
    me: DecodedAhead,
    acc: PromotedSums,
    tokens: Any,
    k: Int32,
    more: cutlass.Constexpr[bool],
    loop: cutlass.Constexpr[Loop],
):
    """As `decoded_ahead.multiply_stage`.  A loop that is `late` gives back the stage before this one, of K block 0 none, and loads the
    weights' scale after that, so that no load is under way then."""
    weights, following = stage.shared("weights"), stage.next()
    token_scale = stage.token_scales + me.token * 4
    if cutlass.const_expr(not loop.late):
        ((factor,), *_) = me.block_scales(stage, None, 0)
    sums, partial = [], acc.partial
    for c in cutlass.range_constexpr(CHUNKS):
        ends = c == CHUNKS - 1 and more
        partial = wgmma.issue_registers(tokens, wgmma.descriptor((weights + c * me.chunk_bytes) >> 4), partial)
        if cutlass.const_expr(c == 0):
            if cutlass.const_expr(loop.late):
                release_if(stage.previous(), me.lane, k > 0)
                ((factor,), *_) = me.block_scales(stage, None, 0)
            per_token = [load_shared_f32(token_scale + 32 * h) * factor for h in range(2)]
        if cutlass.const_expr(ends):
            following.wait_full()
        partial = wgmma.wait(partial, 0, tokens)
        if cutlass.const_expr(ends):
            if cutlass.const_expr(not loop.late):
                release_stage(stage, me.lane)
            tokens = me.fragment(following)
        sums.append(chunk_of(loop.promoted(acc.parts[c], partial, per_token)))
    return PromotedSums(tuple(sums), partial), tokens, following


@dataclass(frozen=True)
class Coming:
    """What a thread has of a full stage before it is multiplied.

    tokens   the wgmma's A
    scales   of its two tokens, times the weights'
    weights  shared address / 16
    """

    tokens: tuple[Any, ...]
    scales: tuple[Any, ...]
    weights: Any

    @staticmethod
    def of(stage: Stage, me: DecodedAhead, weights: Any) -> Coming:
        """Of a stage whose address is known."""
        ((factor,), *_) = me.block_scales(stage, None, 0)
        first = stage.token_scales + me.token * 4
        return Coming(me.fragment(stage), tuple(load_shared_f32(first + 32 * h) * factor for h in range(2)), weights)


def weights_of(stage: Stage) -> Any:
    """As in `Coming`."""
    return stage.shared("weights") >> 4


@cute.jit
def multiply_tile_ahead(stage: Stage, me: DecodedAhead, k_blocks: Int32, loop: cutlass.Constexpr[Loop]):
    """As `multiply_ahead_tile`."""
    acc, coming = me.zero(), Coming.of(stage, me, weights_of(stage))
    for _ in cutlass.range(k_blocks - 1, unroll=1):
        acc, coming, stage = multiply_stage_ahead(stage, me, acc, coming, True, loop)
    acc, coming, stage = multiply_stage_ahead(stage, me, acc, coming, False, loop)
    return me.scale_rows(acc.parts, stage.previous()), stage


@cute.jit
def multiply_stage_ahead(
    stage: Stage, me: DecodedAhead, acc: PromotedSums, now: Coming, more: cutlass.Constexpr[bool], loop: cutlass.Constexpr[Loop]
):
    """As `multiply_stage`, with scales and addresses of the next K block."""
    following, coming = stage.next(), now
    sums, partial = [], acc.partial
    for c in cutlass.range_constexpr(CHUNKS):
        ends = c == CHUNKS - 1 and more
        partial = wgmma.issue_registers(now.tokens, wgmma.descriptor(now.weights + c * (me.chunk_bytes >> 4)), partial)
        if cutlass.const_expr(ends):
            weights = weights_of(following)
            if cutlass.const_expr(loop.mid == 0):
                following.wait_full()
        partial = wgmma.wait(partial, 0, now.tokens)
        if cutlass.const_expr(ends):
            release_stage(stage, me.lane)
        first = loop.promoted(acc.parts[c], partial, now.scales, slice(loop.mid))
        if cutlass.const_expr(ends):
            if cutlass.const_expr(loop.mid > 0):
                following.wait_full()
            coming = Coming.of(following, me, weights)
        sums.append(chunk_of(first, loop.promoted(acc.parts[c], partial, now.scales, slice(loop.mid, None))))
    return PromotedSums(tuple(sums), partial), coming, following
