"""A token's BF16 channels to E4M3 with FP32 scales, E4M3 or E2M1 with UE8M0, or E2M1 with UE4M3 and a factor, eight a lane, as `quant`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from ..device.cast import E2M1_MAX, E4M3_MAX, abs_max, inverse_scale, nearest_e4m3, pack_e2m1, pack_e4m3, scale_exponent, unpack_bf16
from ..device.memory import store_u32, store_v2
from ..device.ptx import emit_to
from ..device.warp import shuffle_xor_f32
from ..recipe import E2M1, UE4M3, UE8M0, Format

PER_LANE = 8
SCALE_LANES = 16  # lanes whose 128 channels share a scale
SMALLEST_AMAX = 1e-4


@cute.jit
def largest_of_lanes(values: Sequence[Any], lanes: cutlass.Constexpr[int]):
    """The largest magnitude of the values of so many lanes, a power of two, that follow one another."""
    amax = Float32(0.0)
    for value in values:
        amax = abs_max(amax, value)
    for step in range(lanes.bit_length() - 1):
        amax = emit_to(Float32, "max.f32 {}, {}, {};", amax, shuffle_xor_f32(amax, 1 << step))
    return amax


def scaled_by(values: Sequence[Any], factor: Any) -> list[Any]:
    return [emit_to(Float32, "mul.rn.f32 {}, {}, {};", value, factor) for value in values]


def f32_scale(amax: Any) -> tuple[Any, Any]:
    """The scale of a block and the factor its values are multiplied with."""
    amax = emit_to(Float32, "max.f32 {}, {}, {};", amax, Float32(SMALLEST_AMAX))
    scale = emit_to(Float32, "div.rn.f32 {}, {}, {};", amax, Float32(E4M3_MAX))
    return scale, emit_to(Float32, "div.rn.f32 {}, {}, {};", Float32(1.0), scale)


def quantize(form: Format, words: Sequence[Any], factor: Any = None) -> tuple[list[Any], Any]:
    """Eight BF16 of a lane as words of codes in a format, which may need the `factor` of its matrix, and the scale that they share with the
    lanes of their block: a byte, or FP32."""
    lanes = form.channels // PER_LANE
    if form.scale == UE8M0:
        return quantize_ue8m0(words, lanes, form.element == E2M1)
    if form.scale == UE4M3:
        return quantize_ue4m3(words, lanes, factor)
    return quantize_f32(words)


def store_codes(form: Format, base: Any, channel: Any, words: Sequence[Any]) -> None:
    """Stores them as the channels from `channel` on, of a matrix whose rows follow one another."""
    store = store_u32 if len(words) == 1 else store_v2
    store(base + (channel // 2 if form.element == E2M1 else channel), *words)


def quantize_ue8m0(words: Sequence[Any], lanes: int, packed: bool) -> tuple[list[Any], Any]:
    """Eight BF16 of a lane as two words of E4M3, or `packed` as one of E2M1, and the exponent of the power of two that they share with the
    `lanes` of their block."""
    return values_by_power_of_two([value for word in words for value in unpack_bf16(word)], lanes, packed)


def values_by_power_of_two(values: Sequence[Any], lanes: int, packed: bool) -> tuple[list[Any], Any]:
    """The same of eight floats."""
    exponent = scale_exponent(largest_of_lanes(values, lanes), E2M1_MAX if packed else E4M3_MAX)
    scaled = scaled_by(values, inverse_scale(exponent))
    return [pack_e2m1(*scaled)] if packed else [pack_e4m3(*scaled[:4]), pack_e4m3(*scaled[4:])], exponent


def quantize_f32(words: Sequence[Any]) -> tuple[list[Any], Any]:
    """Eight BF16 of a lane as two words of E4M3, and the scale that they share with the 16 lanes of their block."""
    values = [value for word in words for value in unpack_bf16(word)]
    scale, factor = f32_scale(largest_of_lanes(values, SCALE_LANES))
    scaled = scaled_by(values, factor)
    return [pack_e4m3(*scaled[:4]), pack_e4m3(*scaled[4:])], scale


def ue4m3_scale(amax: Any, factor: Any) -> tuple[Any, Any]:
    """The scale of a block in a matrix with a factor, as a byte, and what its values are divided by: scale * factor, or infinity where that
    is zero, so that codes are zeros with the values' signs."""
    (whole,) = scaled_by([factor], Float32(E2M1_MAX))
    code, scale = nearest_e4m3(divided(amax, whole))
    (divisor,) = scaled_by([scale], factor)
    return code, cutlass.select_(divisor > Float32(0.0), divisor, Float32(float("inf")))


def divided(value: Any, divisor: Any) -> Any:
    return emit_to(Float32, "div.rn.f32 {}, {}, {};", value, divisor)


def quantize_ue4m3(words: Sequence[Any], lanes: int, factor: Any) -> tuple[list[Any], Any]:
    """Eight BF16 of a lane as a word of E2M1, and the UE4M3 scale that they share with the `lanes` of their block."""
    values = [value for word in words for value in unpack_bf16(word)]
    code, divisor = ue4m3_scale(largest_of_lanes(values, lanes), factor)
    return [pack_e2m1(*[divided(value, divisor) for value in values])], code
