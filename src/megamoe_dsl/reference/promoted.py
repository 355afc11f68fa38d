"""Matmul of fp8xfp8: exact or tensor-core partial sums over 128 of K, each scaled and added in FP32, in K order.

Hopper's tensor core is not an FP32 accumulator. `hopper_dot` says what it does; on an H200 it gave the bits of `wgmma.m64n8k32` for all
of 40,960 random sums over K = 128 (normal and heavy-tailed data), and probes with single products show the same cut from either operand
half, either sign and the accumulator. Hence the FP32 promotion every 128 of K, and hence the reference's definition: partial sums exact,
everything after them to the bit.
"""

from typing import Literal

import torch

from megamoe_dsl.quant import FP32_SCALE_BLOCK, weight_scale_rows

Accumulate = torch.dtype | Literal["hopper"]
"""How partial sums are formed: exactly (float64), in float32, or as the tensor core does."""

FRACTION_BITS = 13
"""Bits below the leading one that survive in the tensor core: 14 significant bits."""

INSTRUCTION_K = 32
_NO_EXPONENT = -100  # of a zero, and of its products: below all others, whose exponents reach down to -18


def _exponent(values: torch.Tensor) -> torch.Tensor:
    """floor(log2(|value|)) as float32, `_NO_EXPONENT` for zero."""
    return torch.where(values == 0, _NO_EXPONENT, torch.frexp(values).exponent - 1).float()


def hopper_dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b^T as chained `wgmma` of K = 32 on Hopper compute it, from a zero accumulator.

    One instruction aligns its 32 products and the accumulator to the largest exponent among them - of a product that is the sum of its
    operands' exponents - and truncates each toward zero, 13 bits below that exponent. Their exact sum is truncated toward zero to 14
    significant bits. Products of a zero do not count. Exponents of subnormal operands are taken as normalised (not probed).

    All intermediates are exact in FP32: aligned addends stay below 2^15 units, 33 of them below 2^21.

    Args:
        a: [n, K] of E4M3 values, float8_e4m3fn or any wider type, K a multiple of 32.
        b: [rows, K] of E4M3 values.

    Returns:
        float32 [n, rows].

    Raises:
        ValueError: when K is not a multiple of 32.
    """
    if a.shape[-1] % INSTRUCTION_K:
        raise ValueError(f"a: K = {a.shape[-1]}, allowed: a multiple of {INSTRUCTION_K}")
    a, b = a.float(), b.float()
    total = torch.zeros(a.shape[0], b.shape[0], device=a.device)
    for left, right in zip(a.split(INSTRUCTION_K, dim=1), b.split(INSTRUCTION_K, dim=1), strict=True):
        largest = (_exponent(left)[:, None] + _exponent(right)).amax(dim=2)
        unit = torch.exp2(torch.maximum(largest, _exponent(total)).clamp(min=_NO_EXPONENT) - FRACTION_BITS)
        units = (left[:, None] * right / unit[..., None]).trunc_().sum(dim=2) + (total / unit).trunc()
        coarse = torch.exp2(_exponent(units).clamp(min=FRACTION_BITS) - FRACTION_BITS)  # integers up to 14 bits stay
        total = (units / coarse).trunc() * coarse * unit
    return total


def promoted_matmul(
    x: torch.Tensor, x_sf: torch.Tensor, w: torch.Tensor, w_sf: torch.Tensor, accumulate: Accumulate = torch.float64
) -> torch.Tensor:
    """x @ w^T with FP32 scales: acc = fma(partial, s, acc) over the blocks of 128 of K, ascending, s = x_sf * w_sf rounded to FP32.

    The fma is formed in float64 and rounded to FP32 once. That is an fma to the bit whenever partial * s fits float64's 53 bits (a partial
    of up to 29 bits, as in exact cases and with `accumulate="hopper"`): adding two numbers in float64 before rounding to FP32 is harmless
    for summands of FP32 precision, and a wider product only moves results that lie within 2^-29 of an FP32 tie.

    Args:
        x: float8_e4m3fn [n, K].
        x_sf: float32 [n, K/128].
        w: float8_e4m3fn [rows, K].
        w_sf: float32 [rows/128, K/128].
        accumulate: how partial sums are formed.

    Returns:
        float32 [n, rows].

    Raises:
        ValueError: on a dtype or shape that does not fit.
    """
    block = FP32_SCALE_BLOCK
    for name, tensor, dtype, shape in (
        ("x", x, torch.float8_e4m3fn, (x.shape[0], w.shape[1])),
        ("w", w, torch.float8_e4m3fn, (w_sf.shape[0] * block, w_sf.shape[1] * block)),
        ("x_sf", x_sf, torch.float32, (x.shape[0], w_sf.shape[1])),
        ("w_sf", w_sf, torch.float32, tuple(w_sf.shape)),
    ):
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}, allowed: {dtype} {shape}")
    working = torch.float32 if accumulate == "hopper" else accumulate
    total = torch.zeros(x.shape[0], w.shape[0], dtype=torch.float32, device=x.device)
    w_rows = weight_scale_rows(w_sf)
    for k, (left, right) in enumerate(zip(x.to(working).split(block, dim=1), w.to(working).split(block, dim=1), strict=True)):
        partial = hopper_dot(left, right) if accumulate == "hopper" else left @ right.T
        scale = x_sf[:, k, None] * w_rows[None, :, k]
        total = (partial.double() * scale.double() + total.double()).float()
    return total
