"""Normal data, and data whose sums are exact in FP32, for the number formats of every recipe.

FP32 sums do not depend on their order when every partial sum, in units of the smallest product bit, stays below 2^24; of promoted recipes
the sums of 128 below 2^14, as the tensor core keeps them.  Linear1 is exact by construction: small integers or E2M1 values, with scales
within a factor of 8.  The activations of Linear2 are whatever SwiGLU gives, so its weights are sparse, and rows that still carry too many
bits for some token lose half of their entries until none does.

All is drawn on the generator's device, weights expert by expert, so that a rank of a real layer takes seconds on a GPU.
"""

import math
from dataclasses import replace

import torch

from megamoe_dsl import quant
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant.packed_tiles import weight_shapes
from megamoe_dsl.recipe import BF16, E2M1, UE4M3, UE8M0, ExpertFactors, Format
from megamoe_dsl.reference.moe import ExpertInputs

Scaled = tuple[torch.Tensor, torch.Tensor]

NORMAL_FACTOR = 2.0**-7
"""Of tokens, and of activated gate and up, in normal data: values up to 21 are not saturated."""
_UNSCALED_BLOCK = 128  # normal values of BF16 that have a magnitude in common
_SPREAD = 1.5  # standard deviation of log2 of the block magnitudes of normal data
_UNIT_VARIANCE = math.exp(-((_SPREAD * math.log(2)) ** 2))
_FP32_BITS = 24
_AT_ONCE = 1 << 20  # products that `thin` looks at together

_INTEGERS = {
    "fp8xfp4": (15, 0),  # 15: the largest run of integers that E4M3 holds
    "mxf4xmxf4": (0, 0),
    "nvfp4xnvfp4": (0, 0),
    "mxfp8xmxfp8": (15, 10),
    "fp8xfp8": (4, 4),
    "fp8xmxfp4": (4, 0),
    "bf16xbf16": (31, 31),
}
"""The largest magnitude of the integers that exact tokens and weights of Linear1 are; 0 for all 16 values of E2M1, equally likely."""
_E2M1_RMS = 2.9
_STEPS = 4  # neighboring scales within an exact operand: a factor of 8
_TOKEN_SCALE, _WEIGHT_SCALE, _DECODED_SCALE = 0.29, 4.6, 7.3  # root mean squares, of weights in units of the smallest
_SIZE = 4.0  # the standard deviation of gate and up
_FC2_ENTRIES = 32  # nonzero weights per Linear2 row to start from, of recipes whose scales the tensor core applies
_FC2_FACTOR, _HIDDEN_FACTOR = 2.0**-11, 2.0**-4  # of NVFP4
_WIDEST = 13  # binades between the scales of normal weights that kernels decode


class CaseError(RuntimeError):
    """No data with exact sums was found for a shape."""

    def __init__(self, expert: int, why: str) -> None:
        super().__init__(f"expert {expert}: {why}; take data within an error bound instead: --random, or exact=False")


def normal(shape: tuple[int, int], channels: int, generator: torch.Generator, rows: int = 1) -> torch.Tensor:
    """Normal values of unit variance, multiplied per `rows` x `channels` by a log-normal factor with mean square 1.  Without these factors
    scales would be nearly equal, and FP32 sums exact."""
    blocks = -(-shape[0] // rows), -(-shape[1] // channels)
    factor = torch.exp2(_SPREAD * torch.randn(blocks, generator=generator, device=generator.device)) * _UNIT_VARIANCE
    spread = factor.repeat_interleave(rows, dim=0)[: shape[0]].repeat_interleave(channels, dim=1)[:, : shape[1]]
    return torch.randn(shape, generator=generator, device=generator.device) * spread


def normal_x(problem: Problem, count: int, generator: torch.Generator) -> Scaled:
    """Normal tokens in the problem's formats, and their scales."""
    form = problem.formats.activations
    x = normal((count, problem.hidden), form.channels if form.scale else _UNSCALED_BLOCK, generator)
    return quant.quantize(x, form, torch.tensor(NORMAL_FACTOR))


def exact_x(problem: Problem, count: int, generator: torch.Generator) -> Scaled:
    """Tokens with exact sums in Linear1, and their scales."""
    form, (largest, _) = problem.formats.activations, _INTEGERS[problem.recipe]
    codes = elements(form, (count, problem.hidden), largest, generator)
    return codes, scales(form, (count, form.scales_of(problem.hidden)), -_STEPS, generator)


def exact_weights(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    """Weights whose sums are exact with `exact_x`, Linear2 only once it is thinned; gate and up are of the size of 4."""
    form, el, h, i = problem.formats.weights, problem.experts_per_rank, problem.hidden, problem.intermediate
    low, low2 = _exponent(problem), -7 if form.element == E2M1 else -11  # of the smallest scales
    width = i // _FC2_ENTRIES if problem.formats.scales_in_mma else quant.FP32_SCALE_BLOCK
    fc1 = [elements(form, (2 * i, h), _INTEGERS[problem.recipe][1], generator) for _ in range(el)]
    fc2 = [_sparse(form, h, i, width, generator) for _ in range(el)]
    weights = [torch.stack([one.view(torch.uint8) for one in drawn]).view(drawn[0].dtype) for drawn in (fc1, fc2)]
    if form.scale is None:
        return quant.unscaled_weights(weights[0] * 2.0**low, weights[1] * 2.0**low2)
    shapes = [(el, parts * -(-rows // form.rows), form.scales_of(k)) for parts, rows, k in weight_shapes(problem).values()]
    factors = None
    if form.factor:
        sizes = ExpertFactors(1.0, 2.0**low, 2.0**low, _HIDDEN_FACTOR, _FC2_FACTOR)
        near = torch.rand(el, len(sizes), generator=generator, device=generator.device) / 2 + 0.75
        near[:, 0] = 1.0
        factors, low, low2 = near * torch.tensor(sizes, device=near.device), 0, 0
    fc1_sf = scales(form, shapes[0], low, generator)
    if problem.formats.decodes:  # within 128 of K a factor of two apart
        each = quant.FP32_SCALE_BLOCK // form.channels
        wide = scales(form, (*shapes[0][:2], -(-shapes[0][2] // each)), low, generator).repeat_interleave(each, dim=2)
        fc1_sf = wide[..., : shapes[0][2]] + _bytes(shapes[0], 0, 2, generator)
    return quant.ExpertWeights(weights[0], fc1_sf, weights[1], scales(form, shapes[1], low2, generator), factors=factors)


def normal_weights(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    """Weights of one rank, of variance 1 / K, so that outputs are of the size of inputs; every block of a scale has a magnitude of its own.
    Where kernels decode E2M1, the smallest magnitudes are made larger, so that E4M3 with a scale per 128 x 128 holds them too."""
    form = problem.formats.weights
    tensors, factors = [], []
    for parts, rows, k in weight_shapes(problem).values():
        experts = []
        for _ in range(problem.experts_per_rank * parts):
            w = normal((rows, k), form.channels if form.scale else _UNSCALED_BLOCK, generator, form.rows) * k**-0.5
            experts.append(quant.quantize(w, form))
            factors.append(quant.nvfp4_factor(w) * NORMAL_FACTOR)
        codes, sf = (torch.stack([one.view(torch.uint8) for one in some]).view(some[0].dtype) for some in zip(*experts, strict=True))
        if problem.formats.decodes:
            sf = sf.clamp(min=max(int(sf.max()) - _WIDEST, 0))
        tensors += [one.unflatten(0, (-1, parts)).flatten(1, 2) for one in (codes, sf)]
    found = quant.ExpertWeights(*tensors)
    if not form.factor:
        return found
    gate_up, fc2 = torch.stack(factors).split([2 * problem.experts_per_rank, problem.experts_per_rank])
    hidden = torch.full_like(fc2, NORMAL_FACTOR)
    return replace(found, factors=torch.stack(ExpertFactors(hidden, gate_up[::2], gate_up[1::2], hidden, fc2), dim=1))


def assert_sums_exact(job: ExpertInputs, left: torch.Tensor, right: torch.Tensor, unit: float) -> None:
    """Cauchy-Schwarz: any partial sum of left @ right^T is at most |left| |right|; every product must be a multiple of `unit`. Raises
    `CaseError` when a sum could need more bits than FP32 has."""
    largest = float(left.norm(dim=1).max() * right.norm(dim=1).max()) / unit
    if largest >= 2.0**_FP32_BITS:
        raise CaseError(job.expert, f"sums of Linear1 reach {largest:.3g} units, and FP32 counts to 2^{_FP32_BITS}")


def check_linear1(problem: Problem, job: ExpertInputs) -> None:
    """Raises `CaseError` unless the FP32 sums of Linear1 are exact in any order."""
    x, w = quant.dequantize(job.x, job.x_sf), quant.dequantize(job.own.fc1, job.own.fc1_sf, parts=2)
    unit = math.prod(1.0 if largest else 0.5 for largest in _INTEGERS[problem.recipe])
    unit *= _smallest(job.x_sf) * _smallest(job.own.fc1_sf) if problem.formats.scaled else 2.0 ** _exponent(problem)
    assert_sums_exact(job, x, w, unit)


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
        return ((size[place] * weight.abs()[:, :, None]).sum(dim=1) * torch.exp2(-unit.double()) >= 2.0**_FP32_BITS).any(dim=1)

    wide, rows = torch.arange(len(weight), device=weight.device), 1 + _AT_ONCE // (1 + len(entries) * len(values))
    while len(wide):
        left = torch.where(entries < keep[wide, None], weight[wide], 0.0)
        wide = wide[torch.cat([inexact(*some) for some in zip(place[wide].split(rows), left.split(rows), strict=True)])]
        keep[wide] //= 2  # a single product is exact, so this ends
    return entries < keep[:, None]


def thin_linear2(job: ExpertInputs, acts: torch.Tensor, acts_sf: torch.Tensor) -> None:
    """Drops entries of a job's Linear2 rows, in place, until the FP32 sums of all these activations are exact in any order."""
    values = quant.dequantize(job.own.fc2, job.own.fc2_sf)
    there = values != 0
    order = there.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : int(there.sum(dim=1).max())]
    live = torch.zeros_like(there).scatter_(1, order, thin(order, values.gather(1, order), quant.dequantize(acts, acts_sf)))
    if job.own.fc2.dtype == torch.uint8:
        job.own.fc2.copy_(quant.pack_e2m1(quant.unpack_e2m1(job.own.fc2) * live))
    else:
        job.own.fc2.copy_(torch.where(live, job.own.fc2.float(), 0.0))


def _integers(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def _bytes(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return _integers(shape, low, high, generator).to(torch.uint8)


def elements(form: Format, shape: tuple[int, int], largest: int, generator: torch.Generator) -> torch.Tensor:
    """Codes of integers of magnitudes up to `largest`; of E2M1 any codes, two in a byte."""
    if form.element == E2M1:
        return _bytes((shape[0], shape[1] // 2), 0, 256, generator)
    values = _integers(shape, -largest, largest + 1, generator).float()
    return values.bfloat16() if form.element == BF16 else quant.encode_e4m3(values)


def scales(form: Format, shape: tuple[int, ...], low: int, generator: torch.Generator) -> torch.Tensor:
    """Powers of two from 2^low to 2^(low + 3), as the format stores scales."""
    exponents = _integers(shape, low, low + _STEPS, generator)
    if form.scale in (UE8M0, None):
        return (exponents + 127).to(torch.uint8)
    powers = torch.exp2(exponents.float())
    return quant.encode_e4m3(powers) if form.scale == UE4M3 else powers


def _sparse(form: Format, rows: int, columns: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Codes [rows, columns], or packed, with one nonzero in each `width` columns of a row; the last columns may be fewer.  Magnitudes are
    all of E2M1, or those of E4M3 from 64 to 240."""
    low, high, sign = (1, 8, 8) if form.element == E2M1 else (0x68, 0x78, 0x80)
    place = _integers((rows, -(-columns // width), 1), 0, width, generator)
    place[:, -1] %= columns - (place.shape[1] - 1) * width
    values = _bytes(place.shape, low, high, generator) + sign * _bytes(place.shape, 0, 2, generator)
    zeros = torch.zeros(*place.shape[:2], width, dtype=torch.uint8, device=generator.device)
    codes = zeros.scatter_(2, place, values).flatten(1)[:, :columns].contiguous()
    if form.element == E2M1:
        return quant.pack_e2m1(codes)
    return codes.view(torch.float8_e4m3fn).to(torch.bfloat16 if form.element == BF16 else torch.float8_e4m3fn)


def _exponent(problem: Problem) -> int:
    """Of the smallest scale of Linear1's weights, with which sums of `hidden` products make gate and up of the size of 4."""
    rms = ((largest * (largest + 1) / 3) ** 0.5 if largest else _E2M1_RMS for largest in _INTEGERS[problem.recipe])
    scales = _TOKEN_SCALE * (_DECODED_SCALE if problem.formats.decodes else _WEIGHT_SCALE) if problem.formats.scaled else 1.0
    return round(math.log2(_SIZE / (problem.hidden**0.5 * math.prod(rms) * scales)))


def _smallest(sf: torch.Tensor) -> float:
    return float((quant.decode_ue8m0(sf) if sf.dtype == torch.uint8 else sf.double()).min())
