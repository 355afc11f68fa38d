"""Sums of Hopper's tensor core, which is not an FP32 accumulator, to the bit.

Measured on an H200 with one `wgmma.m64n8` of chosen operands at a time: 310,000 sums of each format, with an accumulator and without
(normal numbers, exponents far apart, sums that cancel, subnormal operands, single products that stand for one another in every half of K).
`sim.umma` has the same rule, written for the simulator, and `tests/gpu/test_wgmma_on_gpu.py` the experiment.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TensorCoreSums:
    """How products of a format are added.

    k                 of an instruction
    fraction_bits     of an addend that survive, below the leading bit of the largest
    significant_bits  of a result
    least_normal      number of the format: smaller ones are aligned as if they were as large
    smallest          what stands for the largest addend where all are zero
    exact             type in which all intermediates are exact
    """

    k: int
    fraction_bits: int
    significant_bits: int
    least_normal: float
    smallest: float
    exact: torch.dtype

    def aligned(self, values: torch.Tensor) -> torch.Tensor:
        """2^floor(log2(|value|)) of operands, as far as alignment goes; zero for zero."""
        return torch.where(values == 0, 0.0, power(values).clamp_(min=self.least_normal))


E4M3_SUMS = TensorCoreSums(32, 13, 14, 2.0**-6, 2.0**-100, torch.float32)
"""Aligned addends stay below 2^15 units, 33 of them below 2^21.  No product is below 2^-18."""

BF16_SUMS = TensorCoreSums(16, 25, 24, 2.0**-126, 2.0**-133, torch.float64)

_BITS = {torch.float32: (torch.int32, 0x7F800000), torch.float64: (torch.int64, 0x7FF << 52)}
"""An integer type of the same size, and where the exponent lies in it."""


def power(values: torch.Tensor) -> torch.Tensor:
    """2^floor(log2(|value|)) of float32 or float64 values, zero for zero; none is subnormal."""
    integer, exponent = _BITS[values.dtype]
    return values.view(integer).bitwise_and(exponent).view(values.dtype)


def hopper_dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b^T as chained `wgmma` on Hopper compute it, from a zero accumulator: float32 [..., n, rows].

    `a` is [..., n, K] and `b` [..., rows, K] with the same leading dimensions: bfloat16, else E4M3 values, float8_e4m3fn or any wider type.
    K is a multiple of an instruction's: 16, of E4M3 32.  No result that is not zero may be subnormal.

    One instruction aligns its products and the accumulator to the largest exponent among them - of a product that is the sum of its
    operands' exponents, of a subnormal operand that of the least normal number - and truncates each toward zero, 13 bits below that
    exponent with E4M3 and 25 with BF16. Their exact sum is truncated toward zero to 14 or 24 significant bits. Products of a zero do not
    count.  Raises ValueError when K is not such a multiple.
    """
    sums = BF16_SUMS if a.dtype == torch.bfloat16 else E4M3_SUMS
    if a.shape[-1] % sums.k:
        raise ValueError(f"a: K = {a.shape[-1]}, allowed: a multiple of {sums.k}")
    # K comes first: operations then run along the rows of b.
    a, b = (values.to(sums.exact).movedim(-1, 0).contiguous() for values in (a, b))
    total = torch.zeros(*a.shape[1:], b.shape[-1], dtype=sums.exact, device=a.device)
    for left, right in zip(a.split(sums.k), b.split(sums.k), strict=True):
        left, right = left.unsqueeze(-1), right.unsqueeze(-2)
        largest = torch.maximum((sums.aligned(left) * sums.aligned(right)).amax(dim=0), power(total)).clamp_(min=sums.smallest)
        per_unit = 2.0**sums.fraction_bits / largest
        units = (left * right).mul_(per_unit).trunc_().sum(dim=0) + (total * per_unit).trunc_()
        coarse = (power(units) / 2.0 ** (sums.significant_bits - 1)).clamp_(min=1.0)  # integers of no more bits stay
        total = (units / coarse).trunc_() * coarse / per_unit
    return total.float()
