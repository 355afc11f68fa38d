"""Number formats as values, for code that takes any of them: MXFP8 (E4M3) and MXFP4 (E2M1), both with a UE8M0 scale for 32 values, and
NVFP4; functions that quantize to any format of a recipe and back."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from megamoe_dsl.quant import formats
from megamoe_dsl.quant.block128 import (
    dequantize_e4m3_f32,
    dequantize_weight_e4m3,
    quantize_e4m3_f32,
    quantize_e4m3_pow2,
    quantize_weight_e4m3,
)
from megamoe_dsl.recipe import E2M1, E4M3, F32, Format

Scaled = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class MicroScaling:
    """A block-scaled element type.

    scale_byte   float32 largest magnitudes of blocks to the bytes of their scales, uint8; `scale` is what such a byte stands for, float64
    encode       float32 [..., K], already divided by their scale, to codes of the nearest ones
    decode       codes to float64 [..., K]
    quantize     [..., K] to codes and scales; `check=False` looks for no value that has none, and does not wait for the device
    dequantize   codes and scales to float64 [..., K], exact
    relative     largest rounding error of a value, relative to it
    smallest     largest rounding error next to zero
    """

    scale_byte: Callable[[torch.Tensor], torch.Tensor]
    scale: Callable[[torch.Tensor], torch.Tensor]
    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]
    quantize: Callable[..., Scaled]
    dequantize: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    relative: float
    smallest: float

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """The nearest ones that the element has, float64, to float32 values already divided by their scale."""
        return self.decode(self.encode(values))


MICRO_SCALING = {
    E4M3: MicroScaling(
        formats.e4m3_scale_byte,
        formats.decode_ue8m0,
        formats.encode_e4m3,
        formats.decode_e4m3,
        formats.quantize_e4m3,
        formats.dequantize_e4m3,
        2.0**-4,
        2.0**-10,
    ),
    E2M1: MicroScaling(
        formats.e2m1_scale_byte,
        formats.decode_ue8m0,
        lambda x: formats.pack_e2m1(formats.encode_e2m1(x)),
        lambda codes: formats.decode_e2m1(formats.unpack_e2m1(codes)),
        formats.quantize_e2m1,
        formats.dequantize_e2m1,
        2.0**-2,
        2.0**-2,
    ),
}
"""By element, with UE8M0 scales."""
NVFP4_SCALING = replace(
    MICRO_SCALING[E2M1],
    scale_byte=lambda amax: formats.encode_e4m3(amax / formats.E2M1_MAX).view(torch.uint8),
    scale=lambda byte: formats.decode_e4m3(byte.view(torch.float8_e4m3fn)),
)
"""Of values that have been divided by their factor."""


def micro_scaling_of(codes: torch.Tensor) -> MicroScaling:
    """What codes of this dtype are: float8_e4m3fn, or two E2M1 in each byte."""
    return MICRO_SCALING[E2M1 if codes.dtype == torch.uint8 else E4M3]


def quantize(values: torch.Tensor, form: Format, factor: torch.Tensor | None = None, *, check: bool = True) -> Scaled:
    """Codes and scales of floating point [..., rows, K] in a format.

    factor  float32, one or [...], of a format that has one; by default that of all these values
    check   whether to look for NaN and infinities, which waits for the device; always where there is a factor
    """
    if form.scale is None:
        return values.bfloat16().contiguous(), formats.no_scales(values)
    if form.factor:
        return formats.quantize_nvfp4(values, formats.nvfp4_factor(values) if factor is None else factor)
    if form.scale != F32:
        return MICRO_SCALING[form.element].quantize(values, check=check)
    if form.rows > 1:
        return quantize_weight_e4m3(values)
    return (quantize_e4m3_pow2 if form.power_of_two else quantize_e4m3_f32)(values, form.channels, check=check)


def dequantize(codes: torch.Tensor, sf: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """float64 [..., rows, K].  The dtype of `codes` tells the element, that of `sf` the format: UE8M0, E4M3 (NVFP4, without the factor of
    the matrix), or FP32 for rows or for blocks of rows, in `parts` as in `weight_scale_rows`.  BF16 codes have no scales."""
    if codes.dtype == torch.bfloat16:
        return codes.double()
    if sf.dtype == torch.float32:
        return dequantize_e4m3_f32(codes, sf) if sf.shape[:-1] == codes.shape[:-1] else dequantize_weight_e4m3(codes, sf, parts)
    return formats.dequantize_nvfp4(codes, sf) if sf.dtype == torch.float8_e4m3fn else micro_scaling_of(codes).dequantize(codes, sf)
