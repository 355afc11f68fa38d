"""A token's BF16 channels to E4M3 with FP32 scales, E4M3 or E2M1 with UE8M0, or E2M1 with UE4M3 and a factor, eight a lane, as `quant`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import cutlass
from cutlass import Float32

from ..device.cast import (
    E2M1_MAX,
    E4M3_MAX,
    abs_max,
    f32_of_bits,
    inverse_scale,
    max_f32,
    nearest_e4m3,
    pack_e2m1,
    pack_e4m3,
    scale_exponent,
    unpack_bf16,
)
from ..device.memory import store_u32, store_v2
from ..device.ptx import emit_to
from ..device.warp import over_lanes
from ..recipe import E2M1, F32, UE4M3, Format

PER_LANE = 8
SCALE_LANES = 16  # lanes whose 128 channels share a scale
SMALLEST_AMAX = 1e-4


def largest_of_lanes(values: Sequence[Any], lanes: int) -> Any:
    """The largest magnitude of the values of so many lanes, a power of two, that follow one another."""
    return over_lanes(max_f32, reduce(abs_max, values, Float32(0.0)), [1 << step for step in range(lanes.bit_length() - 1)])


def scaled_by(values: Sequence[Any], factor: Any) -> list[Any]:
    return [emit_to(Float32, "mul.rn.f32 {}, {}, {};", value, factor) for value in values]


def f32_scale(amax: Any) -> tuple[Any, Any]:
    """The scale of a block and the factor its values are multiplied with."""
    amax = max_f32(amax, Float32(SMALLEST_AMAX))
    scale = emit_to(Float32, "div.rn.f32 {}, {}, {};", amax, Float32(E4M3_MAX))
    return scale, emit_to(Float32, "div.rn.f32 {}, {}, {};", Float32(1.0), scale)


def quantize(form: Format, words: Sequence[Any], factor: Any = None) -> tuple[list[Any], Any]:
    """Quantizes eight BF16 of a lane, as `quantize_values`."""
    return quantize_values(form, [value for word in words for value in unpack_bf16(word)], factor)


def quantize_values(form: Format, values: Sequence[Any], factor: Any = None) -> tuple[list[Any], Any]:
    """Quantizes eight floats of a lane.  Returns words of codes (two of E4M3, one of E2M1) and the scale of the block that the lane shares
    with its neighbors: an FP32 number, or a byte of UE8M0 or UE4M3.  UE4M3 needs the `factor` of the matrix."""
    amax = largest_of_lanes(values, form.channels // PER_LANE)
    if form.scale == UE4M3:
        code, divisor = ue4m3_scale(amax, factor)
        return [pack_e2m1(*[divided(value, divisor) for value in values])], code
    if form.power_of_two:
        scale = scale_exponent(amax, E2M1_MAX if form.element == E2M1 else E4M3_MAX)
        multiplier = inverse_scale(scale)
    else:
        scale, multiplier = f32_scale(amax)
    scaled = scaled_by(values, multiplier)
    codes = [pack_e2m1(*scaled)] if form.element == E2M1 else [pack_e4m3(*scaled[:4]), pack_e4m3(*scaled[4:])]
    return codes, f32_of_bits(scale << 23) if form.power_of_two and form.scale == F32 else scale


def store_codes(form: Format, base: Any, channel: Any, words: Sequence[Any]) -> None:
    """Stores them as the channels from `channel` on, of a matrix whose rows follow one another."""
    store = store_u32 if len(words) == 1 else store_v2
    store(base + (channel // 2 if form.element == E2M1 else channel), *words)


def ue4m3_scale(amax: Any, factor: Any) -> tuple[Any, Any]:
    """The scale of a block in a matrix with a factor, as a byte, and what its values are divided by: scale * factor, or infinity where that
    is zero, so that codes are zeros with the values' signs."""
    (whole,) = scaled_by([factor], Float32(E2M1_MAX))
    code, scale = nearest_e4m3(divided(amax, whole))
    (divisor,) = scaled_by([scale], factor)
    return code, cutlass.select_(divisor > Float32(0.0), divisor, Float32(float("inf")))


def divided(value: Any, divisor: Any) -> Any:
    return emit_to(Float32, "div.rn.f32 {}, {}, {};", value, divisor)
