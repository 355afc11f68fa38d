"""Activated channels of a pass of tokens, in the registers of a warp, and the scales that two warps find together.

A warp holds 32 accumulator rows, gate and up interleaved by 8: 16 output channels.  Thread t has channels t / 4 and 8 + t / 4 of the warp
for tokens 2 (t % 4) and 2 (t % 4) + 1 of every group of 8.  Two warps share a scale (32 channels), so they exchange their maxima in SMEM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...device import cast
from ...device.ptx import emit, emit_to_many
from ...recipe import E2M1, E4M3
from ..swiglu import activate
from .outputs_e2m1 import E2m1Outputs
from .outputs_e4m3 import E4m3Outputs

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
