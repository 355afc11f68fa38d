"""Block-scaled formats: UE8M0 scales, E4M3 activations, E2M1 (FP4) weights and activations.

One UE8M0 byte scales 32 consecutive values of the K dimension (OCP Microscaling v1.0).  A byte b means 2^(b - 127); 255 is NaN and is
never produced here.  The E4M3 quantizer's bytes are those of the kernel's Linear1 epilogue (DeepGEMM `math.cuh`).  All functions raise
`ProblemError` for a wrong dtype, shape or value.
"""

from itertools import pairwise

import torch

from megamoe_dsl.problem import ProblemError

SCALE_BLOCK = 32
"""Values of K that share one UE8M0 scale byte."""

E4M3_MAX = 448.0
E2M1_MAX = 6.0
_SCALE_BIAS = 127
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _require_dtype(name: str, tensor: torch.Tensor, *allowed: torch.dtype) -> None:
    if tensor.dtype not in allowed:
        raise ProblemError(f"{name}.dtype", tensor.dtype, " or ".join(map(str, allowed)))


def require_tensor(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raises `ProblemError` for a tensor of another dtype or shape."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ProblemError(name, f"{tensor.dtype} {tuple(tensor.shape)}", f"{dtype} {shape}")


def _require_blocks(name: str, k: int, block: int) -> None:
    if block <= 0 or k % block:
        raise ProblemError(f"{name}.shape[-1]", k, f"a multiple of {block}")


def require_floats(name: str, x: torch.Tensor, dims: int = 1) -> None:
    """Raises `ProblemError` unless x is a tensor of a floating point dtype with `dims` dimensions or more."""
    if not isinstance(x, torch.Tensor):
        raise ProblemError(name, x, "a tensor")
    if not x.dtype.is_floating_point:
        raise ProblemError(f"{name}.dtype", x.dtype, "a floating point dtype")
    if x.dim() < dims:
        raise ProblemError(f"{name}.shape", tuple(x.shape), "[..., K]" if dims == 1 else "[..., rows, K]")


def blocks_of(x: torch.Tensor, block: int) -> torch.Tensor:
    """Blocks of the last dimension that share a scale: [..., K] to [..., ceil(K / block), block], zeros beyond K."""
    short = -x.shape[-1] % block
    return (torch.nn.functional.pad(x, (0, short)) if short else x).unflatten(-1, (-1, block))


def float_blocks(name: str, x: torch.Tensor, block: int, *, whole: bool = False, check: bool = True) -> torch.Tensor:
    """`blocks_of` x in float32.  Raises `ProblemError` for what is not floating point, with `check` for NaN and infinities, which waits for
    the device, and with `whole` for a K that is no multiple of the block."""
    require_floats(name, x)
    if whole:
        _require_blocks(name, x.shape[-1], block)
    if check:
        _require_finite(name, x)
    return blocks_of(x.to(torch.float32), block)


def _require_finite(name: str, tensor: torch.Tensor) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise ProblemError(name, "NaN or an infinity", "finite")


_UE8M0 = (torch.uint8, torch.float8_e8m0fnu)


def _require_scales(name: str, values: torch.Tensor, sf: torch.Tensor, block: int, *dtypes: torch.dtype) -> None:
    _require_dtype(name, sf, *(dtypes or _UE8M0))
    expected = (*values.shape[:-1], -(-values.shape[-1] // block))
    if tuple(sf.shape) != expected:
        raise ProblemError(f"{name}.shape", tuple(sf.shape), f"{expected}, a scale for {block} values")


# --- UE8M0 -----------------------------------------------------------------------------------------------------------------------


def ue8m0_bytes(sf: torch.Tensor) -> torch.Tensor:
    """Scales that torch calls float8_e8m0fnu as the bytes they are, uint8, in the same memory; any other tensor as it is."""
    return sf.view(torch.uint8) if sf.dtype == torch.float8_e8m0fnu else sf


def decode_ue8m0(code: torch.Tensor) -> torch.Tensor:
    """Scale bytes (uint8 or float8_e8m0fnu, any shape) to powers of two: float64 2^(code - 127), for 2^-127 is subnormal in float32."""
    code = ue8m0_bytes(code)
    _require_dtype("code", code, torch.uint8)
    if bool((code == 255).any()):
        raise ProblemError("code", 255, "at most 254: in UE8M0 255 is NaN")
    return _power_of_two(code.to(torch.int32) - _SCALE_BIAS)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return torch.ldexp(torch.ones(exponent.shape, dtype=torch.float64, device=exponent.device), exponent)


def encode_ue8m0(scale: torch.Tensor) -> torch.Tensor:
    """The smallest UE8M0 scale that is not below `scale`, float32 of any shape: uint8 ceil(log2(scale)) + 127, clamped to [0, 254].

    A subnormal or zero input gives byte 1 or 0.
    """
    _require_dtype("scale", scale, torch.float32)
    _require_finite("scale", scale)
    if bool((scale < 0).any()):
        raise ProblemError("scale", "a negative value", "0 or more")
    return _byte_not_below(scale)


def _byte_not_below(scale: torch.Tensor) -> torch.Tensor:
    # Without looking for what has no scale, which waits for the device; a NaN gives 254.
    bits = scale.abs().contiguous().view(torch.int32)  # abs: minus zero would set the sign bit
    return ((bits.to(torch.int64) + 0x7FFFFF) >> 23).clamp(0, 254).to(torch.uint8)


def inverse_scale(code: torch.Tensor) -> torch.Tensor:
    """2^(127 - code) as float32, the factor that a value is multiplied with before the cast."""
    return decode_ue8m0(code).reciprocal().to(torch.float32)


# --- E4M3 ------------------------------------------------------------------------------------------------------------------------


def encode_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Cast float32 to E4M3 (fn), round to nearest even, saturating to +-448; NaN stays NaN (PTX `cvt.rn.satfinite.e4m3x2.f32`)."""
    _require_dtype("x", x, torch.float32)  # torch's own cast makes NaN of what rounds above 448, hence the clamp
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def decode_e4m3(code: torch.Tensor) -> torch.Tensor:
    """E4M3 codes, float8_e4m3fn or uint8 bits, to their exact values in float64."""
    _require_dtype("code", code, torch.float8_e4m3fn, torch.uint8)
    return code.view(torch.float8_e4m3fn).to(torch.float64)


def e4m3_scale_byte(amax: torch.Tensor) -> torch.Tensor:
    """UE8M0 byte of a block whose largest magnitude is `amax`, float32: uint8, 0 for amax 0.

    The rounded product amax * float32(1/448) decides: an amax of 448 * 2^n gives exactly 2^n.
    """
    return encode_ue8m0(_least_scale(amax, E4M3_MAX))


def _least_scale(amax: torch.Tensor, largest: float) -> torch.Tensor:
    _require_dtype("amax", amax, torch.float32)
    return amax * torch.full((), 1.0 / largest, dtype=torch.float32, device=amax.device)


def scaled_blocks(
    name: str, x: torch.Tensor, block: int, largest: float, check: bool, whole: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks divided by their scales, float32 [..., ceil(K / block), block], and the scales' bytes.  Raises as `float_blocks`."""
    blocks = float_blocks(name, x, block, whole=whole, check=check)
    sf = _byte_not_below(_least_scale(blocks.abs().amax(dim=-1), largest))
    return blocks * _power_of_two(_SCALE_BIAS - sf.to(torch.int32)).to(torch.float32).unsqueeze(-1), sf


def quantize_e4m3(x: torch.Tensor, block: int = SCALE_BLOCK, *, check: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize floating point [..., K] to E4M3 with one UE8M0 scale per `block` values: float8_e4m3fn [..., K], uint8 [..., K / block].

    A block of zeros gets byte 0 (inverse scale 2^127) and codes of zero; minus zero keeps its sign. What is not float32 is cast to it
    first. Without `check` nobody looks for non-finite values, which waits for the device; they stay in their block.
    """
    scaled, sf = scaled_blocks("x", x, block, E4M3_MAX, check)
    return encode_e4m3(scaled).flatten(-2), sf


def dequantize_e4m3(x: torch.Tensor, sf: torch.Tensor, block: int = SCALE_BLOCK) -> torch.Tensor:
    """Exact values, float64, of block-scaled E4M3: float8_e4m3fn or uint8 bits [..., K], UE8M0 scales [..., K / block]."""
    _require_blocks("x", x.shape[-1], block)
    _require_scales("sf", x, sf, block)
    return (decode_e4m3(x).unflatten(-1, (-1, block)) * decode_ue8m0(sf).unsqueeze(-1)).flatten(-2)


# --- E2M1 ------------------------------------------------------------------------------------------------------------------------


def e2m1_values(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The 16 values of E2M1 by code: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negated (code 8 is minus zero). Shape [16]."""
    positive = torch.tensor(_E2M1_MAGNITUDES, dtype=dtype, device="cpu")
    return torch.cat([positive, -positive])


def decode_e2m1(code: torch.Tensor) -> torch.Tensor:
    """E2M1 codes, one to an element, to their values in float64."""
    return e2m1_values().to(code.device)[code.to(torch.int32)]


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Cast float32 or float64 to E2M1 codes, uint8, round to nearest even, saturating to +-6 (PTX `cvt.rn.satfinite.e2m1x2.f32`).

    Bit 3 is the sign; minus zero, and what rounds to it, keeps its sign.  DeepGEMM's `per_token_cast_to_fp4` takes every tie down and gives
    no minus zero.
    """
    _require_dtype("x", x, torch.float32, torch.float64)
    if bool(x.isnan().any()):
        raise ProblemError("x", "NaN", "numbers: E2M1 has no NaN")
    return _nearest_code(x)


def _nearest_code(x: torch.Tensor) -> torch.Tensor:
    # How many middles between neighbors a magnitude is beyond, the sign in bit 3.  A tie goes to the even code: it is not beyond the
    # middle above an even one, and beyond that above an odd one.
    magnitude = x.abs()
    code = torch.signbit(x).to(torch.uint8) << 3
    for lower, (value, above) in enumerate(pairwise(_E2M1_MAGNITUDES)):
        middle = (value + above) / 2
        code += magnitude >= middle if lower % 2 else magnitude > middle
    return code


def pack_e2m1(code: torch.Tensor) -> torch.Tensor:
    """Two codes per byte, the even index in the low nibble: uint8 [..., K] to [..., K / 2]."""
    _require_dtype("code", code, torch.uint8)
    _require_blocks("code", code.shape[-1], 2)
    if bool((code > 15).any()):
        raise ProblemError("code", int(code.max()), "at most 15")
    return _two_in_a_byte(code)


def _two_in_a_byte(code: torch.Tensor) -> torch.Tensor:
    return code[..., 0::2] | (code[..., 1::2] << 4)


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Inverse of `pack_e2m1`: uint8 [..., K / 2] to codes uint8 [..., K]."""
    _require_dtype("packed", packed, torch.uint8)
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def e2m1_scale_byte(amax: torch.Tensor) -> torch.Tensor:
    """UE8M0 byte of an E2M1 block whose largest magnitude is `amax`, 2^ceil(log2(amax / 6)): `e4m3_scale_byte` with float32(1/6).  An amax
    of 6 * 2^n gives exactly 2^n, and the next float32 above it 2^(n + 1).  Arguments, result and errors are the same."""
    return encode_ue8m0(_least_scale(amax, E2M1_MAX))


def quantize_e2m1(w: torch.Tensor, block: int = SCALE_BLOCK, *, check: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to packed E2M1 with one UE8M0 scale (`e2m1_scale_byte`) per `block` values: weights, and the activations of mxf4xmxf4.

    Takes floating point [..., K] and gives uint8 [..., K / 2], low nibble first, and uint8 [..., K / block]; all else as `quantize_e4m3`.
    """
    scaled, sf = scaled_blocks("w", w, block, E2M1_MAX, check)
    return _two_in_a_byte(_nearest_code(scaled).flatten(-2)), sf


def dequantize_e2m1(packed: torch.Tensor, sf: torch.Tensor, block: int = SCALE_BLOCK) -> torch.Tensor:
    """Exact values, float64, of block-scaled packed E2M1: uint8 [..., K / 2], low nibble first, UE8M0 scales [..., K / block]."""
    code = unpack_e2m1(packed)
    _require_blocks("packed", code.shape[-1], block)
    _require_scales("sf", code, sf, block)
    return (decode_e2m1(code).unflatten(-1, (-1, block)) * decode_ue8m0(sf).unsqueeze(-1)).flatten(-2)


# --- Plain values -----------------------------------------------------------------------------------------------------------------

_E4M3_NAN = 0x7F  # with either sign; e4m3fn has no infinity
_UE8M0_NAN = 0xFF


def not_finite(values: torch.Tensor) -> torch.Tensor:
    """Where values are NaN or infinite: bool of the same shape; float8_e4m3fn, UE8M0 scales, or any float of 16 bits and more."""
    if values.dtype == torch.float8_e4m3fn:
        return values.view(torch.uint8).bitwise_and(0x7F) == _E4M3_NAN
    if values.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return values.view(torch.uint8) == _UE8M0_NAN
    return ~torch.isfinite(values)


def no_scales(values: torch.Tensor) -> torch.Tensor:
    """What stands for the scales of values that have none: uint8 [..., 0]."""
    return torch.empty(*values.shape[:-1], 0, dtype=torch.uint8, device=values.device)


# --- NVFP4 -----------------------------------------------------------------------------------------------------------------------
# E2M1 with an E4M3 scale, never negative, for 16 values (`kind::mxf4nvf4` of PTX ISA, "tcgen05.mma"), and an FP32 factor of the matrix: in
# checkpoints of NVIDIA's Model Optimizer weight_scale_2, and input_scale of activations (docs/lab/references.md).

NVFP4_BLOCK = 16


def nvfp4_factor(x: torch.Tensor) -> torch.Tensor:
    """The factor with which the largest scale of `x` is the largest that E4M3 has: float32 amax / (448 * 6), a scalar; 1 for zeros."""
    require_floats("x", x, 0)
    amax = x.abs().amax().to(torch.float32) if x.numel() else torch.zeros((), device=x.device)
    return torch.where(amax == 0, 1.0, amax / (E4M3_MAX * E2M1_MAX))


def quantize_nvfp4(x: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize floating point [..., K] to packed E2M1, uint8 [..., K / 2], with one E4M3 scale per 16 values, float8_e4m3fn [..., K / 16].

    A scale is amax / (6 * factor), to the nearest E4M3; codes are x / (scale * factor), to the nearest E2M1; both saturate, each operation
    is rounded to FP32.  Where a scale is zero the codes are, with the values' signs.  `factor` is float32 and positive: one, or [...] of
    leading dimensions as `nvfp4_factor` gives it for each.
    """
    blocks = float_blocks("x", x, NVFP4_BLOCK, whole=True)
    whole = factor.to(torch.float32).reshape(*factor.shape, *[1] * (blocks.ndim - factor.ndim))
    if not bool(((whole > 0) & (whole < torch.inf)).all()):
        raise ProblemError("factor", whole.flatten()[:4].tolist(), "positive and finite")
    sf = encode_e4m3(blocks.abs().amax(dim=-1) / (E2M1_MAX * whole.squeeze(-1)))
    scale = decode_e4m3(sf).to(torch.float32).unsqueeze(-1) * whole
    return pack_e2m1(encode_e2m1(blocks / torch.where(scale > 0, scale, torch.inf)).flatten(-2)), sf


def dequantize_nvfp4(packed: torch.Tensor, sf: torch.Tensor) -> torch.Tensor:
    """Exact values without the factor of the matrix: uint8 [..., K / 2] and float8_e4m3fn [..., K / 16] to float64 [..., K]."""
    codes = unpack_e2m1(packed)
    _require_scales("sf", codes, sf, NVFP4_BLOCK, torch.float8_e4m3fn)
    return (decode_e2m1(codes).unflatten(-1, (-1, NVFP4_BLOCK)) * decode_e4m3(sf).unsqueeze(-1)).flatten(-2)
