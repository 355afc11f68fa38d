"""Activated channels of a pass of tokens, in the registers of a warp, and the scales that two warps find together.

A warp holds 32 accumulator rows, gate and up interleaved by 8: 16 output channels.  Thread t has channels t / 4 and 8 + t / 4 of the warp
for tokens 2 (t % 4) and 2 (t % 4) + 1 of every group of 8.  Two warps share a scale (32 channels), so they exchange their maxima in SMEM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...device import cast
from ...device.cast import E2M1_MAX, E4M3_MAX, pack_e2m1, pack_e4m3
from ...device.e2m1 import gather_rows
from ...device.memory import store_shared_v2, store_transposed_b8
from ...device.ptx import emit, emit_to_many
from ...recipe import E2M1, E4M3
from ..swiglu import activate
from .epilogue_tile import fc1_store_address, packed_store_address, packed_token


@dataclass(frozen=True)
class E2m1Outputs:
    """The counterpart of `E4m3Outputs`; a pass has four groups."""

    largest: ClassVar[float] = E2M1_MAX

    def pack(self, values: Sequence[Any]) -> Any:
        """Channels c and c + 8 of the first token, then of the second: the nibbles of two bytes."""
        return values[0], values[2], values[1], values[3]

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        first, second = (pack_e2m1(*groups[g], *groups[g + 1]) for g in (0, 2))
        store_shared_v2(packed_store_address(buffer, packed_token(lane), warp), *gather_rows(first, second, lane))


@dataclass(frozen=True)
class E4m3Outputs:
    """How a warp of the Linear1 epilogue rounds and stores its 16 channels of a pass (kernels/moe/sm100/epilogue.py)."""

    largest: ClassVar[float] = E4M3_MAX

    def pack(self, values: Sequence[Any]) -> Any:
        """What is kept of a thread's four scaled values of a group of 8 tokens until all groups are stored."""
        return pack_e4m3(*values)

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        """All groups of the pass into the tile at `buffer`."""
        token = lane & (8 * len(groups) - 1)
        store_transposed_b8(fc1_store_address(buffer, token, warp), groups)


OUTPUTS: dict[str, E4m3Outputs | E2m1Outputs] = {E4M3: E4m3Outputs(), E2M1: E2m1Outputs()}


def activate_group(ctx: Any, v: Sequence[Any], weights: tuple[Any, Any], gates: int = 0) -> tuple[list[Any], list[Any]]:
    """`activate_channels`, and the warp's maximum of each of a thread's two tokens."""
    values = activate_channels(ctx, v, weights, gates)
    return values, [cast.max_over_rows(cast.abs_max(values[q], values[2 + q])) for q in range(2)]


def activate_channels(ctx: Any, v: Sequence[Any], weights: tuple[Any, Any], gates: int) -> list[Any]:
    """A thread's four values of 8 tokens: one channel of its two tokens, then another; gates lie from place `gates` on in its two runs of
    four sums, up in the other two places."""
    values: list[Any] = []
    for gate, up in ((gates, 2 - gates), (4 + gates, 6 - gates)):
        values += activate(ctx, (v[gate], v[gate + 1]), (v[up], v[up + 1]), weights)
    return values


@cute.jit
def share_maxima(maxima: Int32, lane: Int32, peaks: cutlass.Constexpr[Any]):
    """Stores the maxima of all groups, for the warp that shares the scales; `maxima` is where the thread's first token's goes."""
    if lane < 4:
        for g in cutlass.range_constexpr(len(peaks)):
            emit("st.shared.v2.f32 [{}], {{{}, {}}};", maxima + g * 32, *peaks[g])


def joint_exponents(others: Any, g: int, peaks: Sequence[Any], largest: float) -> list[Any]:
    """Exponents of the scales of a group's two tokens; `others` is where the other warp's maxima lie."""
    theirs = emit_to_many([Float32] * 2, "ld.shared.v2.f32 {{{}, {}}}, [{}];", others + g * 32)
    return [cast.scale_exponent(cast.abs_max(peaks[q], theirs[q]), largest) for q in range(2)]
