"""fp8xmxfp4: the tokens of fp8xfp8, and E2M1 weights with UE8M0 scales whose partial sums of 128 are exact with 14 bits.

Linear1: integers up to 4, every E2M1 value, which is an integer up to 12 in halves, and scales within a row and 128 of K that differ by a
factor of 2 at most: 128 products stay below 2^14 halves. Linear2: one nonzero weight per row and 128 of K, so that a partial sum is one
product, and rows are thinned until the FP32 sum over the blocks is exact.

Everything is drawn on the generator's device, weights expert by expert.
"""

import math

import torch

from megamoe_dsl.cases.common import assert_sums_exact, draw_integers, normal, thin
from megamoe_dsl.cases.fp8xfp8 import exact_x, places_of
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import (
    FP32_SCALE_BLOCK,
    SCALE_BLOCK,
    ExpertWeights,
    blocks_of,
    decode_ue8m0,
    dequantize_e2m1,
    dequantize_e4m3_f32,
    e2m1_values,
    pack_e2m1,
    quantize_e2m1,
    unpack_e2m1,
)
from megamoe_dsl.reference.moe import ExpertInputs

__all__ = ["check_linear1", "exact_weights", "exact_x", "normal_weights", "thin_linear2"]

_BLOCK = FP32_SCALE_BLOCK
_WIDEST = 13  # binades between the scales of normal weights
_STEPS = 4  # neighboring scales of blocks of 128: a factor of 8


def normal_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    """Normal weights of one rank, of variance 1 / K, the magnitude of each 32 of K its own; the smallest are made larger, so that E4M3 with
    a scale per 128 x 128 holds them too."""
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    drawn = []
    for rows, k in ((2 * i, h), (h, i)):
        experts = [quantize_e2m1(normal((rows, k), SCALE_BLOCK, generator) * k**-0.5) for _ in range(el)]
        codes, scales = (torch.stack(one) for one in zip(*experts, strict=True))
        drawn += [codes, scales.clamp(min=max(int(scales.max()) - _WIDEST, 0))]
    return ExpertWeights(*drawn)


def exact_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    """Weights whose sums are exact with `exact_x` (module docstring), Linear2 only once it is thinned."""
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    # Scales put the standard deviation of gate and up near 4: sqrt(H) products of about 2.6 * 2.9, and two scales of about 0.29 and 6.5
    # times the smallest weight scale.
    base = 127 + round(math.log2(4.0 / (h**0.5 * 2.6 * 2.9 * 0.29 * 6.5)))
    fc1 = torch.stack([_bytes((2 * i, h // 2), 0, 256, generator) for _ in range(el)])
    wide = _bytes((el, 2 * i, -(-h // _BLOCK)), base, base + _STEPS, generator).repeat_interleave(_BLOCK // SCALE_BLOCK, dim=2)
    return ExpertWeights(
        fc1=fc1,
        fc1_sf=wide[..., : h // SCALE_BLOCK] + _bytes((el, 2 * i, h // SCALE_BLOCK), 0, 2, generator),
        fc2=torch.stack([_sparse_rows(h, i, generator) for _ in range(el)]),
        fc2_sf=_bytes((el, h, i // SCALE_BLOCK), 120, 124, generator),
    )


def _bytes(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return draw_integers(shape, low, high, generator).to(torch.uint8)


def _sparse_rows(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Packed E2M1 [rows, columns / 2] with one nonzero in each block of 128 columns."""
    shape = (rows, -(-columns // _BLOCK), 1)
    place, code = places_of(shape, columns, generator), _bytes(shape, 1, 8, generator) + 8 * _bytes(shape, 0, 2, generator)
    zeros = torch.zeros(rows, shape[1], _BLOCK, dtype=torch.uint8, device=generator.device)
    return pack_e2m1(zeros.scatter_(2, place, code).flatten(1)[:, :columns])


def check_linear1(job: ExpertInputs) -> None:
    """Raises CaseError unless the FP32 sums of Linear1 are exact in any order (partial sums fit 14 bits by construction)."""
    unit = float(job.x_sf.min()) * float(decode_ue8m0(job.fc1_sf).min()) * 0.5
    assert_sums_exact(job, dequantize_e4m3_f32(job.x, job.x_sf), dequantize_e2m1(job.fc1, job.fc1_sf), unit)


def thin_linear2(job: ExpertInputs, acts: torch.Tensor, acts_sf: torch.Tensor) -> None:
    """Drop entries of the job's Linear2 rows, in place, until the FP32 sums of every token are exact in any order."""
    codes = unpack_e2m1(job.fc2)
    place = blocks_of(codes, _BLOCK).argmax(dim=2) + torch.arange(0, codes.shape[1], _BLOCK, device=codes.device)
    picked = codes.gather(1, place)
    weight = e2m1_values().to(picked.device)[picked.int()] * decode_ue8m0(job.fc2_sf).gather(1, place // SCALE_BLOCK)
    live = thin(place, weight, dequantize_e4m3_f32(acts, acts_sf))
    job.fc2.copy_(pack_e2m1(torch.zeros_like(codes).scatter_(1, place, torch.where(live, picked, 0).to(torch.uint8))))
