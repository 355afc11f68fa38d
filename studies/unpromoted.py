"""The SM90 kernel's main loop without promotion: all of K accumulates in the tensor core, tokens as rows (tiles of 128 tokens).

What a `rowwise` recipe would run: its scales, one per token and one per output channel, are applied after the loop.  The loop is swapped
in for one compilation, so that the package has no switch for it; what it computes is right only where all scales are 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from megamoe_dsl.device import wgmma
from megamoe_dsl.device.mbarrier import wait
from megamoe_dsl.device.ring import Ring
from megamoe_dsl.kernels.mega_moe.sm90 import tokens_as_m
from megamoe_dsl.kernels.mega_moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.mega_moe.sm90.context import Sm90Context, release_stage


@dataclass(frozen=True)
class Accumulator:
    """The tensor core's sums; the values are those of `tokens_as_m.Accumulator`, which has registers for partial sums beside them."""

    parts: tuple[tuple[Float32, ...], ...]

    @staticmethod
    def zero(config: Sm90Config, me: tokens_as_m.Share) -> Accumulator:
        return Accumulator((tuple(Float32(0.0) for _ in range(64)),) * me.chunks)


@cute.jit
def multiply(ctx: Sm90Context, me: tokens_as_m.Share, acc: Accumulator, scales: Any, ring: Ring, k: Int32, more: cutlass.Boolean):
    """As `tokens_as_m.multiply`; one wait for both chunks, because nothing reads the first before the loop ends."""
    tokens = wgmma.descriptor((ctx.shared("tokens", ring.index) + me.first_token * tokens_as_m.ROW_BYTES) >> 4)
    weights = ctx.shared("weights", ring.index) + me.first_chunk * tokens_as_m.CHUNK_BYTES
    following = ring.next()
    sums = []
    for c in cutlass.range_constexpr(me.chunks):
        chunk = wgmma.descriptor((weights + c * tokens_as_m.CHUNK_BYTES) >> 4)
        sums.extend(wgmma.issue(tokens, chunk, acc.parts[c], accumulate=True))
    if more:
        wait(ctx.barrier("full", following.index), following.phase)
    sums = wgmma.wait(sums)
    release_stage(ctx, me, ring)
    return Accumulator(tuple(tuple(sums[64 * c : 64 * (c + 1)]) for c in range(me.chunks))), following


@contextmanager
def unpromoted() -> Iterator[None]:
    """Kernels compiled inside do not promote."""
    with mock.patch.multiple(tokens_as_m, multiply=multiply, Accumulator=Accumulator):
        yield
