"""Matmul of fp8xfp8 and fp8xmxfp4: exact or tensor-core partial sums over 128 of K, each scaled and added in FP32, in K order.

The sums of Hopper's tensor core (`hopper_dot`) are known to the bit: measured on an H200 with one `wgmma.m64n8` of chosen operands at a
time, 310,000 sums of each format.  `sim.umma` has the same rule, and `tests/gpu/test_wgmma_on_gpu.py` the experiment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from megamoe_dsl.quant import FP32_SCALE_BLOCK, SCALE_BLOCK, blocks_of, decode_ue8m0, dequantize_e2m1, weight_scale_rows
from megamoe_dsl.quant.formats import require_tensor


@dataclass(frozen=True)
class TensorCoreSums:
    """How products of a format are added.

    k                 of an instruction
    fraction_bits     of an addend that survive, below the leading bit of the largest
    significant_bits  of a result
    least_normal      number of the format: smaller ones are aligned as if they were as large
    smallest          what stands for the largest addend where all are zero
    exact             type in which all intermediates are exact
    units             an integer type for sums of aligned addends: PyTorch converts to one many times as fast as it truncates
    """

    k: int
    fraction_bits: int
    significant_bits: int
    least_normal: float
    smallest: float
    exact: torch.dtype
    units: torch.dtype

    def aligned(self, values: torch.Tensor) -> torch.Tensor:
        """2^floor(log2(|value|)), at least `least_normal`: the exponent that operands are aligned by; zero for zero."""
        return torch.where(values == 0, 0.0, power(values).clamp_(min=self.least_normal))


E4M3_SUMS = TensorCoreSums(32, 13, 14, 2.0**-6, 2.0**-100, torch.float32, torch.int32)
"""Aligned addends stay below 2^15 units, 33 of them below 2^21.  No product is below 2^-18."""

BF16_SUMS = TensorCoreSums(16, 25, 24, 2.0**-126, 2.0**-133, torch.float64, torch.int64)

_BITS = {torch.float32: (torch.int32, 0x7F800000), torch.float64: (torch.int64, 0x7FF << 52)}
"""An integer type of the same size, and where the exponent lies in it."""


def power(values: torch.Tensor) -> torch.Tensor:
    """2^floor(log2(|value|)) of float32 or float64 values, zero for zero; none is subnormal."""
    integer, exponent = _BITS[values.dtype]
    return values.view(integer).bitwise_and(exponent).view(values.dtype)


def hopper_dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b^T as chained `wgmma` on Hopper compute it, from a zero accumulator: float32 [..., n, rows].

    `a` is [..., n, K] and `b` [..., rows, K] with the same leading dimensions: bfloat16, else E4M3 values, float8_e4m3fn or any wider type.
    No result that is not zero may be subnormal.

    One instruction, of 16 along K, or 32 of E4M3, aligns its products and the accumulator to the largest exponent among them - of a product
    that is the sum of its operands' exponents, of a subnormal operand that of the least normal number - and truncates each toward zero, 13
    bits below that exponent with E4M3 and 25 with BF16. Their exact sum is truncated toward zero to 14 or 24 significant bits. Products of
    a zero do not count, so that K may be any.
    """
    sums = BF16_SUMS if a.dtype == torch.bfloat16 else E4M3_SUMS
    padding = (0, -a.shape[-1] % sums.k if a.shape[-1] else sums.k)
    # K comes first: operations then run along the rows of b.
    a, b = (torch.nn.functional.pad(values.to(sums.exact), padding).movedim(-1, 0).contiguous() for values in (a, b))
    nan = (0 * a.sum(dim=0)).unsqueeze(-1) + (0 * b.sum(dim=0)).unsqueeze(-2)  # or zeros: integers have no NaN
    products = torch.empty(sums.k, *nan.shape, dtype=sums.exact, device=a.device)
    addends = torch.empty_like(products, dtype=sums.units)
    total = torch.nan_to_num(nan)
    for left, right in zip(a.split(sums.k), b.split(sums.k), strict=True):
        left, right = left.unsqueeze(-1), right.unsqueeze(-2)
        largest = torch.mul(sums.aligned(left), sums.aligned(right), out=products).amax(dim=0)
        per_unit = 2.0**sums.fraction_bits / torch.maximum(largest, power(total)).clamp_(min=sums.smallest)
        addends.copy_(torch.mul(left, right, out=products).mul_(per_unit))
        units = (addends.sum(dim=0, dtype=sums.units) + (total * per_unit).to(sums.units)).to(sums.exact)
        coarse = (power(units) / 2.0 ** (sums.significant_bits - 1)).clamp_(min=1.0)  # integers of no more bits stay
        total = (units / coarse).to(sums.units) * coarse / per_unit
    return (total + nan).float()


Scaled = tuple[torch.Tensor, torch.Tensor]
"""Values, and their scales if they are E4M3."""
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
        tokens = max(1, _MAX_PRODUCTS[x.device.type == "cpu"] // max(1, w.numel() // block * E4M3_SUMS.k))
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
    w_sf        float32 [ceil(rows/128), ceil(K/128)], or [rows, ceil(K/128)]; fp8xmxfp4: uint8 UE8M0 [rows, K/32]
    accumulate  how partial sums are formed
    parts       matrices that w has below one another, as in `quant.weight_scale_rows`

    The fma is formed in float64 and rounded to FP32 once: an fma to the bit where a partial sum has up to 29 bits, as in exact cases and
    with `accumulate="hopper"`.  E2M1 weights are taken as E4M3 numbers over the largest scale of their row and block: a kernel that
    splits scales differently gives another sum only where an E4M3 number or a product of scales is subnormal.

    Raises `ProblemError` for a dtype or shape that does not fit.
    """
    if w_sf.dtype == torch.uint8:
        element, (w, w_rows) = torch.float32, _over_the_largest_scale(w, w_sf)
    else:
        element, w_rows = torch.float8_e4m3fn, w_sf if len(w_sf) == len(w) else weight_scale_rows(w_sf, len(w), parts)
    (rows, k), blocks = w.shape, -(-w.shape[1] // FP32_SCALE_BLOCK)
    require_tensor("w", w, element, (rows, k))
    require_tensor("w_sf", w_rows, torch.float32, (rows, blocks))
    require_tensor("x", x, torch.float8_e4m3fn, (len(x), k))
    require_tensor("x_sf", x_sf, torch.float32, (len(x), blocks))
    total = torch.zeros(len(x), rows, dtype=torch.float32, device=x.device)
    for x_scale, w_scale, partial in zip(x_sf.T, w_rows.T, _partial_sums(x, w, accumulate), strict=False):  # without K nothing is added
        total = (partial.double() * (x_scale[:, None] * w_scale).double() + total.double()).float()
    return total


def _over_the_largest_scale(w: torch.Tensor, w_sf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 weights as float32 over the largest scale of their row and 128 of K, times 2^6, and that scale over 2^6, float32."""
    each = FP32_SCALE_BLOCK // SCALE_BLOCK
    largest = blocks_of(w_sf, each).amax(dim=2)
    relative = w_sf.to(torch.int32) + 127 - largest.repeat_interleave(each, dim=1)[:, : w_sf.shape[1]].to(torch.int32)
    numbers = dequantize_e2m1(w, relative.clamp(min=0).to(torch.uint8)).float() * _LARGEST_SCALE
    return numbers, decode_ue8m0(largest).float() / _LARGEST_SCALE
