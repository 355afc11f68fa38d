"""What the generators of all combinations share: normal data, exactness of FP32 sums, and room around rounding boundaries."""

import math

import torch

from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import quantize
from megamoe_dsl.reference import requantize
from megamoe_dsl.reference.moe import ExpertInputs

FP32_BITS = 24
UNSCALED_BLOCK = 128
"""Values of BF16 that have a magnitude in common."""
NORMAL_FACTOR = 2.0**-7
"""Of tokens, and of activated gate and up, in normal data: values up to 21 are not saturated."""
_SPREAD = 1.5  # standard deviation of log2 of the block magnitudes of normal data
_UNIT_VARIANCE = math.exp(-((_SPREAD * math.log(2)) ** 2))
_MARGIN = 2.0**-20
_AT_ONCE = 1 << 20  # products that `thin` looks at together


class CaseError(RuntimeError):
    """No data with exact sums was found for a shape."""

    def __init__(self, expert: int, why: str) -> None:
        super().__init__(f"expert {expert}: {why}; take data within an error bound instead: --random, or exact=False")


def draw_integers(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    """int64, low <= value < high, on the generator's device."""
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def normal(shape: tuple[int, int], channels: int, generator: torch.Generator, rows: int = 1) -> torch.Tensor:
    """Normal values of unit variance: times a log-normal factor with mean square 1 per `rows` x `channels`.  Without these factors scales
    would be nearly equal, and FP32 sums exact."""
    blocks = -(-shape[0] // rows), -(-shape[1] // channels)
    factor = torch.exp2(_SPREAD * torch.randn(blocks, generator=generator, device=generator.device)) * _UNIT_VARIANCE
    spread = factor.repeat_interleave(rows, dim=0)[: shape[0]].repeat_interleave(channels, dim=1)[:, : shape[1]]
    return torch.randn(shape, generator=generator, device=generator.device) * spread


def normal_x(problem: Problem, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal tokens in the problem's formats, and their scales."""
    form = problem.formats.activations
    x = normal((count, problem.hidden), form.channels if form.scale else UNSCALED_BLOCK, generator)
    return quantize(x, form, torch.tensor(NORMAL_FACTOR))


def assert_sums_exact(job: ExpertInputs, left: torch.Tensor, right: torch.Tensor, unit: float) -> None:
    """Cauchy-Schwarz: any partial sum of left @ right^T is at most |left| |right|; every product must be a multiple of `unit`. Raises
    `CaseError` when a sum could need more bits than FP32 has."""
    largest = float(left.norm(dim=1).max() * right.norm(dim=1).max()) / unit
    if largest >= 2.0**FP32_BITS:
        raise CaseError(job.expert, f"sums of Linear1 reach {largest:.3g} units, and FP32 counts to 2^{FP32_BITS}")


def fragile(values: torch.Tensor, recipe: str, factor: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of `values` (float32 [n, I]) whose codes or scales (`requantize`) change when the values move by a relative 2^-20: bool [n]."""
    ends = zip(*(requantize(values * end, recipe, factor) for end in (1 - _MARGIN, 1 + _MARGIN)), strict=True)
    return torch.stack([(low.view(torch.uint8) != high.view(torch.uint8)).any(dim=1) for low, high in ends]).any(dim=0)


def low_bit(values: torch.Tensor) -> torch.Tensor:
    """Exponent of the lowest set bit of each float64 value (of at most 8 mantissa bits); a large number for zero."""
    mantissa, exponent = torch.frexp(values)
    integer = (mantissa.abs() * 2.0**8).to(torch.int64)
    lowest = torch.log2((integer & -integer).clamp(min=1).double()).to(torch.int32)
    return torch.where(values == 0, 10_000, exponent - 8 + lowest)


def thin(place: torch.Tensor, weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Halve the entries of sparse rows until the sums of every token are exact in FP32, in any order.

    place   int64 [rows, E], the columns of the entries
    weight  float64 [rows, E], their values, few mantissa bits
    values  float64 [n, columns], the tokens, few mantissa bits

    Gives bool [rows, E]: which entries stay, always the first ones of a row.
    """
    entries = torch.arange(weight.shape[1], device=weight.device)
    keep = weight.new_full((len(weight),), len(entries), dtype=torch.int64)
    size, bits = values.abs().T.contiguous(), low_bit(values).T.contiguous()  # [columns, n]

    def inexact(place: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        unit = (bits[place] + low_bit(weight)[:, :, None]).amin(dim=1)
        return ((size[place] * weight.abs()[:, :, None]).sum(dim=1) * torch.exp2(-unit.double()) >= 2.0**FP32_BITS).any(dim=1)

    wide, rows = torch.arange(len(weight), device=weight.device), 1 + _AT_ONCE // (1 + len(entries) * len(values))
    while len(wide):
        left = torch.where(entries < keep[wide, None], weight[wide], 0.0)
        wide = wide[torch.cat([inexact(*some) for some in zip(place[wide].split(rows), left.split(rows), strict=True)])]
        keep[wide] //= 2  # a single product is exact, so this ends
    return entries < keep[:, None]
