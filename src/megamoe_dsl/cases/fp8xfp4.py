"""fp8xfp4: normal data, and data whose sums are exact in FP32.

Linear1 is exact by construction: E4M3 integers up to 15, every E2M1 value, and scales within a factor of 8 each; Cauchy-Schwarz then
bounds every partial sum, and that is asserted. The activations of Linear2 are whatever SwiGLU gives, codes over 17 binades times a scale
per block, so its weights are sparse, and rows that still carry too many bits for some token lose half of their entries until none does.
"""

import math

import torch

from megamoe_dsl.cases.common import assert_sums_exact, draw_integers, normal, thin
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import (
    MICRO_SCALING,
    SCALE_BLOCK,
    ExpertWeights,
    decode_ue8m0,
    dequantize_e4m3,
    encode_e4m3,
    micro_scaling_of,
    pack_e2m1,
)
from megamoe_dsl.reference.moe import ExpertInputs

_MAX_INTEGER = 15  # the largest run of integers that E4M3 holds
_SCALE_STEPS = 4  # neighboring scales within an exact operand: a factor of 8
_L2_ENTRIES = 32  # nonzero weights per Linear2 row to start from


def normal_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    """Normal weights of one rank, of variance 1 / K, so that outputs are of the size of inputs."""
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    quantize = MICRO_SCALING[problem.formats.weights.element].quantize
    fc1, fc1_sf = quantize(normal((el, 2 * i, h), SCALE_BLOCK, generator) * h**-0.5)
    fc2, fc2_sf = quantize(normal((el, h, i), SCALE_BLOCK, generator) * i**-0.5)
    return ExpertWeights(fc1, fc1_sf, fc2, fc2_sf)


def draw_bytes(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return draw_integers(shape, low, high, generator).to(torch.uint8)


def exact_x(problem: Problem, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens whose sums in Linear1 are exact (module docstring)."""
    integers = draw_integers((count, problem.hidden), -_MAX_INTEGER, _MAX_INTEGER + 1, generator)
    return encode_e4m3(integers.float()), exact_scales(problem, count, generator)


def exact_scales(problem: Problem, count: int, generator: torch.Generator) -> torch.Tensor:
    """Scales of tokens within a factor of 8: uint8 [count, hidden / 32]."""
    return draw_bytes((count, problem.hidden // SCALE_BLOCK), 127 - _SCALE_STEPS, 127, generator)


def exact_weights(problem: Problem, generator: torch.Generator, token: float = 9.0) -> ExpertWeights:
    """Weights whose sums are exact with `exact_x` (module docstring), Linear2 only once it is thinned; `token` is the root mean square of
    the tokens' elements."""
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    return ExpertWeights(
        fc1=draw_bytes((el, 2 * i, h // 2), 0, 256, generator),
        fc1_sf=fc1_scales(problem, generator, token * 2.9),
        fc2=sparse_rows(el, h, i, generator),
        fc2_sf=draw_bytes((el, h, i // SCALE_BLOCK), 120, 123, generator),
    )


def fc1_scales(problem: Problem, generator: torch.Generator, product: float) -> torch.Tensor:
    """Scales that put the standard deviation of gate and up near 4: sqrt(H) products of about `product`, and two scales of about 0.29 and
    4.6 times the smallest weight scale.  uint8 [el, 2I, H / 32]."""
    h = problem.hidden
    base = 127 + round(math.log2(4.0 / (h**0.5 * product * 0.29 * 4.6)))
    return draw_bytes((problem.experts_per_rank, 2 * problem.intermediate, h // SCALE_BLOCK), base, base + _SCALE_STEPS, generator)


def sparse_rows(el: int, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Packed E2M1 [el, rows, columns / 2] with one nonzero in each of `_L2_ENTRIES` equal parts of every row."""
    part = columns // _L2_ENTRIES
    place = draw_integers((el, rows, _L2_ENTRIES, 1), 0, part, generator)
    magnitude = draw_bytes((el, rows, _L2_ENTRIES, 1), 1, 8, generator)
    sign = draw_bytes((el, rows, _L2_ENTRIES, 1), 0, 2, generator) * 8
    code = torch.zeros(el, rows, _L2_ENTRIES, part, dtype=torch.uint8, device=generator.device).scatter_(3, place, magnitude + sign)
    return pack_e2m1(code.flatten(2))


def check_linear1(job: ExpertInputs) -> None:
    """Raises CaseError unless the sums of Linear1 are exact: every product is a multiple of the smallest scales times 1 times 0.5."""
    check_sums(job, dequantize_e4m3(job.x, job.x_sf), 1.0)


def check_sums(job: ExpertInputs, x: torch.Tensor, step: float) -> None:
    """`check_linear1` of tokens whose values `x` are such that products are multiples of `step` times 0.5 times both scales."""
    unit = float(decode_ue8m0(job.x_sf).min() * decode_ue8m0(job.fc1_sf).min()) * step * 0.5
    assert_sums_exact(job, x, micro_scaling_of(job.fc1).dequantize(job.fc1, job.fc1_sf), unit)


def thin_linear2(job: ExpertInputs, acts: torch.Tensor, acts_sf: torch.Tensor) -> None:
    thin_rows(job, dequantize_e4m3(acts, acts_sf))


def thin_rows(job: ExpertInputs, values: torch.Tensor) -> None:
    """`thin_linear2` for activations with these values, float64 [n, I]."""
    element = micro_scaling_of(job.fc2)
    weights = element.decode(job.fc2)
    order = (weights != 0).to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :_L2_ENTRIES]
    picked = weights.gather(1, order)
    live = thin(order, picked * decode_ue8m0(job.fc2_sf).gather(1, order // SCALE_BLOCK), values)
    weights.scatter_(1, order, torch.where(live, picked, 0.0))
    job.fc2.copy_(element.encode(weights.float()))
