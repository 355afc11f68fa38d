"""fp8xfp8: normal data, and data whose partial sums are exact with 14 bits and whose FP32 sums are exact too.

Linear1: integers up to 4 on both sides, so 128 products stay at or below 2^11, and powers of two as scales, within a factor of 8 on
either side; 128 blocks of K fit FP32. Linear2: one nonzero weight per row and 128 of K, so that a partial sum is one product of 8
significant bits, and rows are thinned until the FP32 sum over the blocks is exact. The weights are large, their scales small: should a
tensor core let the exponent of a product with zero take part in the alignment, the product still keeps all its bits.

Everything is drawn on the generator's device, normal weights expert by expert: a rank of a real layer takes seconds on a GPU.
"""

import math

import torch

from megamoe_dsl.cases.common import assert_sums_exact, block_factors, draw_integers, thin
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import (
    FP32_SCALE_BLOCK,
    ExpertWeights,
    blocks_of,
    dequantize_e4m3_f32,
    dequantize_weight_e4m3,
    encode_e4m3,
    quantize_weight_e4m3,
    weight_scale_rows,
)
from megamoe_dsl.reference.moe import ExpertInputs

_BLOCK = FP32_SCALE_BLOCK
_MAX_INTEGER = 4
_SCALE_STEPS = 4  # neighboring scales within an exact operand: a factor of 8
_L2_VALUES = (64.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 256.0)


def _normal_matrices(count: int, rows: int, columns: int, generator: torch.Generator, parts: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """[count, parts * rows, columns] of variance 1 / columns, the magnitude of each 128 x 128 block of a part its own."""
    device, down, across = generator.device, _blocks(rows), _blocks(columns)
    codes = torch.empty(count, parts, rows, columns, dtype=torch.float8_e4m3fn, device=device)
    sf = torch.empty(count, parts, down, across, device=device)
    for expert in range(count):
        factor = block_factors((parts * down, across), generator) * columns**-0.5
        w = torch.randn(parts * down, _BLOCK, across, _BLOCK, generator=generator, device=device)
        w = w.mul_(factor[:, None, :, None]).view(parts, down * _BLOCK, across * _BLOCK)
        codes[expert], sf[expert] = quantize_weight_e4m3(w[:, :rows, :columns])
    return codes.flatten(1, 2), sf.flatten(1, 2)


def _blocks(channels: int) -> int:
    return -(-channels // _BLOCK)


def normal_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    """Normal weights of one rank, of variance 1 / K, drawn expert by expert."""
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    return ExpertWeights(*_normal_matrices(el, i, h, generator, parts=2), *_normal_matrices(el, h, i, generator))


def _powers(shape: tuple[int, ...], low: int, generator: torch.Generator) -> torch.Tensor:
    return torch.exp2(draw_integers(shape, low, low + _SCALE_STEPS, generator).float())


def _small_integers(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return encode_e4m3(draw_integers(shape, -_MAX_INTEGER, _MAX_INTEGER + 1, generator).float())


def exact_x(problem: Problem, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens whose sums in Linear1 are exact (module docstring)."""
    sf = _powers((count, _blocks(problem.hidden)), -_SCALE_STEPS, generator)
    return _small_integers((count, problem.hidden), generator), sf


def exact_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    """Weights whose sums are exact with `exact_x` (module docstring), Linear2 only once it is thinned."""
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    # Scales put the standard deviation of gate and up near 4: sqrt(H) products of about 6.7, and two scales of about 0.29 and 4.6 times
    # the smallest weight scale.
    base = round(math.log2(4.0 / (h**0.5 * 6.7 * 0.29 * 4.6)))
    fc1 = torch.stack([_small_integers((2 * i, h), generator).view(torch.uint8) for _ in range(el)]).view(torch.float8_e4m3fn)
    return ExpertWeights(
        fc1=fc1,
        fc1_sf=_powers((el, 2 * _blocks(i), _blocks(h)), base, generator),
        fc2=torch.stack([encode_e4m3(sparse_rows(h, i, generator)).view(torch.uint8) for _ in range(el)]).view(torch.float8_e4m3fn),
        fc2_sf=_powers((el, _blocks(h), _blocks(i)), -11, generator),
    )


def sparse_rows(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """float32 [rows, columns] with one nonzero in each block of 128 columns, which E4M3 has."""
    shape, device = (rows, _blocks(columns), 1), generator.device
    place = places_of(shape, columns, generator)
    magnitude = torch.tensor(_L2_VALUES, device=device)[draw_integers(shape, 0, len(_L2_VALUES), generator)]
    sign = 1 - 2 * draw_integers(shape, 0, 2, generator)
    filled = torch.zeros(rows, _blocks(columns), _BLOCK, device=device).scatter_(2, place, magnitude * sign)
    return filled.flatten(1)[:, :columns]


def places_of(shape: tuple[int, ...], columns: int, generator: torch.Generator) -> torch.Tensor:
    """int64 [rows, blocks, 1]: a place in each block of 128 columns; the last may have fewer."""
    place = draw_integers(shape, 0, _BLOCK, generator)
    place[:, -1] %= columns - (shape[1] - 1) * _BLOCK
    return place


def check_linear1(job: ExpertInputs) -> None:
    """Raises CaseError unless the FP32 sums of Linear1 are exact in any order (partial sums fit 12 bits by construction)."""
    unit = float(job.x_sf.min()) * float(job.fc1_sf.min())
    assert_sums_exact(job, dequantize_e4m3_f32(job.x, job.x_sf), dequantize_weight_e4m3(job.fc1, job.fc1_sf, parts=2), unit)


def thin_linear2(job: ExpertInputs, acts: torch.Tensor, acts_sf: torch.Tensor) -> None:
    thin_rows(job, dequantize_e4m3_f32(acts, acts_sf), weight_scale_rows(job.fc2_sf, len(job.fc2)).double())


def thin_rows(job: ExpertInputs, values: torch.Tensor, scales: torch.Tensor) -> None:
    """`thin_linear2` for activations with these values, float64 [n, I], and weights with these scales, float64 [H, I / 128] or one."""
    codes = job.fc2.to(torch.float64)
    place = blocks_of(codes, _BLOCK).abs().argmax(dim=2) + torch.arange(0, codes.shape[1], _BLOCK, device=codes.device)
    weight = codes.gather(1, place)
    live = thin(place, weight * scales, values)
    job.fc2.copy_(torch.zeros_like(codes).scatter_(1, place, torch.where(live, weight, 0.0)).to(job.fc2.dtype))
