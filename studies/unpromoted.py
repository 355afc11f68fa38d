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

from megamoe_dsl.blocks.sm90.tokens_as_m import ROW_BYTES, RowShare
from megamoe_dsl.device import wgmma
from megamoe_dsl.device.stage import Stage, release_stage


@dataclass(frozen=True)
class TensorCoreSums:
    """The values are those of `RowShare`'s accumulator, which has registers for partial sums beside them."""

    parts: tuple[tuple[Float32, ...], ...]


def zero(me: RowShare) -> TensorCoreSums:
    return TensorCoreSums((tuple(Float32(0.0) for _ in range(me.chunk_rows // 2)),) * me.chunks)


@cute.jit
def multiply(me: RowShare, stage: Stage, acc: TensorCoreSums, scales: Any, k: Int32, more: cutlass.Boolean):
    """As `RowShare.multiply`; one wait for both chunks, because nothing reads the first before the loop ends."""
    tokens = wgmma.descriptor((stage.shared("tokens") + me.first_token * ROW_BYTES) >> 4)
    weights = stage.shared("weights") + me.first_chunk * me.chunk_bytes
    following = stage.next()
    sums = []
    for c in cutlass.range_constexpr(me.chunks):
        chunk = wgmma.descriptor((weights + c * me.chunk_bytes) >> 4)
        sums.extend(wgmma.issue(tokens, chunk, acc.parts[c], accumulate=True))
    if more:
        following.wait_full()
    sums = wgmma.wait(sums)
    release_stage(stage, me.lane)
    values = me.chunk_rows // 2
    return TensorCoreSums(tuple(tuple(sums[values * c : values * (c + 1)]) for c in range(me.chunks))), following


@contextmanager
def unpromoted() -> Iterator[None]:
    """Kernels compiled inside do not promote."""
    with mock.patch.multiple(RowShare, multiply=multiply, zero=zero):
        yield
