"""Matmul of fp8xfp8 and fp8xmxfp4: exact or tensor-core partial sums over 128 of K, each scaled and added in FP32, in K order.

Hopper's tensor core is not an FP32 accumulator: of E4M3 products it keeps 14 bits (`hopper_dot`). Hence the FP32 promotion every 128 of K,
and hence the reference's definition: partial sums exact, everything after them to the bit.
"""

from collections.abc import Iterator
from typing import Literal

import torch

from megamoe_dsl.quant import FP32_SCALE_BLOCK, SCALE_BLOCK, blocks_of, decode_ue8m0, dequantize_e2m1, weight_scale_rows
from megamoe_dsl.reference.tensor_core import E4M3_SUMS, hopper_dot

Accumulate = torch.dtype | Literal["hopper"]
"""How partial sums are formed: exactly (float64), in float32, or as the tensor core does."""

_LARGEST_SCALE = 2.0**6
"""Of E2M1 weights in E4M3: 6 times that is a number of it, 6 times twice that is none."""
_MAX_PRODUCTS = {True: 1 << 20, False: 1 << 26}  # held at a time, on a CPU or not: what its cache holds, what keeps a GPU busy


def _partial_sums(x: torch.Tensor, w: torch.Tensor, accumulate: Accumulate) -> Iterator[torch.Tensor]:
    block = FP32_SCALE_BLOCK
    if accumulate == "hopper":
        # The blocks side by side, and as many tokens at a time as memory allows.
        left, right = (blocks_of(t.float(), block).transpose(0, 1) for t in (x, w))
        tokens = max(1, _MAX_PRODUCTS[x.device.type == "cpu"] // (w.numel() // block * E4M3_SUMS.k))
        yield from torch.cat([hopper_dot(part, right) for part in left.split(tokens, dim=1)], dim=1)
    else:
        for left, right in zip(x.to(accumulate).split(block, dim=1), w.to(accumulate).split(block, dim=1), strict=True):
            yield left @ right.T


def promoted_matmul(
    x: torch.Tensor, x_sf: torch.Tensor, w: torch.Tensor, w_sf: torch.Tensor, accumulate: Accumulate = torch.float64, parts: int = 1
) -> torch.Tensor:
    """x @ w^T, float32 [n, rows], its scales applied in FP32: acc = fma(partial, s, acc) over the blocks of 128 of K, ascending,
    s = x_sf * w_sf rounded to FP32.

    x           float8_e4m3fn [n, K]
    x_sf        float32 [n, ceil(K/128)]
    w           float8_e4m3fn [rows, K]; fp8xmxfp4: uint8 [rows, K/2], packed E2M1
    w_sf        float32 [ceil(rows/128), ceil(K/128)]; fp8xmxfp4: uint8 UE8M0 [rows, K/32]
    accumulate  how partial sums are formed
    parts       matrices that w has below one another, as in `quant.weight_scale_rows`

    The fma is formed in float64 and rounded to FP32 once. That is an fma to the bit whenever partial * s fits float64's 53 bits (a partial
    of up to 29 bits, as in exact cases and with `accumulate="hopper"`): adding two numbers in float64 before rounding to FP32 is harmless
    for summands of FP32 precision, and a wider product only moves results that lie within 2^-29 of an FP32 tie.

    E2M1 weights have a scale per 32; a block's partial sum is that of the E4M3 numbers that they are over the largest of its row's, 384 at
    most, and s has the rest of that scale. How a kernel parts scales between the two shows in subnormal E4M3 numbers alone.

    Raises ValueError on a dtype or shape that does not fit.
    """
    if w_sf.dtype == torch.uint8:
        w, w_rows = _over_the_largest_scale(w, w_sf)
    else:
        _check_fp8(x, x_sf, w, w_sf)
        w_rows = weight_scale_rows(w_sf, w.shape[0], parts)
    if x.shape[1] != w.shape[1] or tuple(x_sf.shape) != (x.shape[0], w_rows.shape[1]):
        raise ValueError(f"x, x_sf: {tuple(x.shape)}, {tuple(x_sf.shape)}, allowed: K = {w.shape[1]}, and a scale for every 128 of it")
    total = torch.zeros(x.shape[0], w.shape[0], dtype=torch.float32, device=x.device)
    for k, partial in enumerate(_partial_sums(x, w, accumulate)):
        scale = x_sf[:, k, None] * w_rows[None, :, k]
        total = (partial.double() * scale.double() + total.double()).float()
    return total


def _over_the_largest_scale(w: torch.Tensor, w_sf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 weights as float32 over the largest scale of their row and 128 of K, times 2^6, and that scale over 2^6, float32."""
    each = FP32_SCALE_BLOCK // SCALE_BLOCK
    largest = blocks_of(w_sf, each).amax(dim=2)
    relative = w_sf.to(torch.int32) + 127 - largest.repeat_interleave(each, dim=1)[:, : w_sf.shape[1]].to(torch.int32)
    numbers = dequantize_e2m1(w, relative.clamp(min=0).to(torch.uint8)).float() * _LARGEST_SCALE
    return numbers, decode_ue8m0(largest).float() / _LARGEST_SCALE


def _check_fp8(x: torch.Tensor, x_sf: torch.Tensor, w: torch.Tensor, w_sf: torch.Tensor) -> None:
    """Dtypes and shapes of fp8xfp8.  Raises ValueError."""
    for name, tensor, dtype, shape in (
        ("x", x, torch.float8_e4m3fn, (x.shape[0], w.shape[1])),
        ("w", w, torch.float8_e4m3fn, tuple(w.shape)),
        ("x_sf", x_sf, torch.float32, (x.shape[0], w_sf.shape[1])),
        ("w_sf", w_sf, torch.float32, (w_sf.shape[0], -(-w.shape[1] // FP32_SCALE_BLOCK))),
    ):
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}, allowed: {dtype} {shape}")
