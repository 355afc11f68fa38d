"""FP8 with FP32 scales: E4M3 activations per token and 128 channels, E4M3 weights per 128 x 128 (the DeepSeek-V3 recipe, for SM90).

Inputs and weights have scales of amax / 448, as DeepGEMM's `per_token_cast_to_fp8` and `per_block_cast_to_fp8`.  Between the two linears
the kernel itself quantizes, with powers of two: scaling is then exact, and the scale needs no division.

All functions work on the device of their arguments, give the same bytes on CPU and GPU, and raise `ProblemError` for a wrong dtype, shape
or value.
"""

import torch

from megamoe_dsl.problem import ProblemError
from megamoe_dsl.quant.formats import E4M3_MAX, _require_dtype, _require_scales, encode_e4m3, float_blocks, require_floats, scaled_blocks

FP32_SCALE_BLOCK = 128
"""Values of K, and rows of weights, that share one FP32 scale; the tensor core's partial sums are promoted to FP32 as often."""

_SMALLEST_AMAX = 1e-4
_MANTISSA_BITS = 23


def _scales(amax: torch.Tensor) -> torch.Tensor:
    # The divisor is a tensor on the same device: torch multiplies by a rounded reciprocal when a CUDA tensor is divided by a number.
    return amax.clamp(min=_SMALLEST_AMAX) / torch.full((), E4M3_MAX, dtype=torch.float32, device=amax.device)


def _joined(blocks: torch.Tensor, values: int) -> torch.Tensor:
    return blocks.flatten(-2)[..., :values].contiguous()


def quantize_e4m3_f32(x: torch.Tensor, block: int = FP32_SCALE_BLOCK, *, check: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize floating point [..., K] to E4M3 with one FP32 scale, max(amax, 1e-4) / 448, per `block` values of the last dimension.

    Gives float8_e4m3fn [..., K] and float32 [..., ceil(K / block)]; the last block may have fewer values. Each step rounds once in FP32:
    the scale, its reciprocal, the product value * reciprocal; then E4M3, to nearest even, saturating. What is not float32 is cast to it
    first. Without `check` nobody looks for non-finite values, which waits for the device; they stay in their block.
    """
    blocks = float_blocks("x", x, block, check=check)
    sf = _scales(blocks.abs().amax(dim=-1))
    return _joined(encode_e4m3(blocks * sf.reciprocal().unsqueeze(-1)), x.shape[-1]), sf


def quantize_e4m3_pow2(x: torch.Tensor, block: int = FP32_SCALE_BLOCK, *, check: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to E4M3 with one power of two per `block` values of the last dimension: what the Linear1 epilogue does.

    The exponent byte e is `e4m3_scale_byte` of the block's amax; the scale is the float32 with bits e << 23, which is 2^(e - 127), and 0
    for e = 0 (a block of zeros: all its codes are zero). Values are multiplied with the float32 of bits (254 - e) << 23. All else is as of
    `quantize_e4m3_f32`.
    """
    scaled, byte = scaled_blocks("x", x, block, E4M3_MAX, check, whole=False)
    return _joined(encode_e4m3(scaled), x.shape[-1]), (byte.to(torch.int32) << _MANTISSA_BITS).view(torch.float32)


def dequantize_e4m3_f32(x: torch.Tensor, sf: torch.Tensor, block: int = FP32_SCALE_BLOCK) -> torch.Tensor:
    """Exact values, float64, of E4M3 [..., K] with one FP32 scale per `block` values, [..., ceil(K / block)]."""
    _require_dtype("x", x, torch.float8_e4m3fn)
    _require_scales("sf", x, sf, block, torch.float32)
    return x.to(torch.float64) * sf.to(torch.float64).repeat_interleave(block, dim=-1)[..., : x.shape[-1]]


def quantize_weight_e4m3(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize floating point [..., rows, K] to E4M3 with one FP32 scale per 128 x 128, fewer at the ends.  Gives float8_e4m3fn [..., rows,
    K] and float32 [..., ceil(rows / 128), ceil(K / 128)]; rounding and errors as `quantize_e4m3_f32`."""
    require_floats("w", w, 2)
    block, (rows, k) = FP32_SCALE_BLOCK, w.shape[-2:]
    filled = torch.nn.functional.pad(w, (0, 0, 0, -rows % block)) if rows % block else w
    blocks = float_blocks("w", filled, block).unflatten(-3, (-1, block))  # [..., rows / 128, 128, K / 128, 128]
    sf = _scales(blocks.abs().amax(dim=(-3, -1)))
    codes = encode_e4m3(blocks * sf.reciprocal()[..., :, None, :, None])
    return codes.flatten(-4, -3).flatten(-2)[..., :rows, :k].contiguous(), sf


def weight_scale_rows(sf: torch.Tensor, rows: int, parts: int = 1) -> torch.Tensor:
    """Scales per 128 x 128 to scales per row: [..., blocks, K / 128] to [..., rows, K / 128].

    `parts` matrices lie below one another, each of as many rows and with blocks of its own, of which the last may have fewer rows.
    """
    each, blocks = rows // parts, sf.shape[-2]
    if blocks != parts * -(-each // FP32_SCALE_BLOCK):
        raise ProblemError("sf.shape[-2]", blocks, f"{parts * -(-each // FP32_SCALE_BLOCK)} for {rows} rows")
    spread = sf.repeat_interleave(FP32_SCALE_BLOCK, dim=-2)
    return spread if parts * each == spread.shape[-2] else spread.unflatten(-2, (parts, -1))[..., :each, :].flatten(-3, -2)


def dequantize_weight_e4m3(w: torch.Tensor, sf: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """Exact values, float64, of E4M3 [..., rows, K] with FP32 scales per 128 x 128, of `parts` matrices as in `weight_scale_rows`."""
    return dequantize_e4m3_f32(w, weight_scale_rows(sf, w.shape[-2], parts))
