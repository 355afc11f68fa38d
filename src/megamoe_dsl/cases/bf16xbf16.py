"""bf16xbf16: normal data, and data whose sums FP32 has in any order.

Linear1: integers up to 31 on both sides, of the weights over a power of two, so that sums over 16384 channels stay below 2^24 units.
Linear2: one nonzero weight per row and 128 of K, and rows are thinned until their sums are exact, as those of fp8xfp8.
"""

import math
from collections.abc import Callable

import torch

from megamoe_dsl.cases.common import UNSCALED_BLOCK, assert_sums_exact, draw_integers, normal
from megamoe_dsl.cases.fp8xfp8 import sparse_rows, thin_rows
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, no_scales, unscaled_weights
from megamoe_dsl.reference.moe import ExpertInputs

_MAX_INTEGER = 31
_DEVIATION = _MAX_INTEGER / 3**0.5  # of integers up to that
_L2_UNIT = 2.0**-11


def exact_x(problem: Problem, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens whose sums in Linear1 are exact (module docstring)."""
    x = _integers(count, problem.hidden, generator)
    return x, no_scales(x)


def normal_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    """Normal weights of one rank, of variance 1 / K, drawn expert by expert."""
    h, i = problem.hidden, problem.intermediate

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return _experts(problem, lambda: (normal((rows, columns), UNSCALED_BLOCK, generator) * columns**-0.5).bfloat16())

    return unscaled_weights(drawn(2 * i, h), drawn(h, i))


def exact_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    """Weights whose sums are exact with `exact_x` (module docstring), Linear2 only once it is thinned; gate and up are of the size of 4."""
    h, i = problem.hidden, problem.intermediate
    unit = _unit(h)
    fc1 = _experts(problem, lambda: _integers(2 * i, h, generator) * unit)
    return unscaled_weights(fc1, _experts(problem, lambda: (sparse_rows(h, i, generator) * _L2_UNIT).bfloat16()))


def _unit(hidden: int) -> float:
    return 2.0 ** round(math.log2(4.0 / (hidden**0.5 * _DEVIATION**2)))


def _integers(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return draw_integers((rows, columns), -_MAX_INTEGER, _MAX_INTEGER + 1, generator).bfloat16()


def _experts(problem: Problem, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    return torch.stack([draw() for _ in range(problem.experts_per_rank)])


def check_linear1(job: ExpertInputs) -> None:
    """Raises CaseError unless the FP32 sums of Linear1 are exact in any order."""
    assert_sums_exact(job, job.x.double(), job.fc1.double(), _unit(job.x.shape[1]))


def thin_linear2(job: ExpertInputs, acts: torch.Tensor, acts_sf: torch.Tensor) -> None:
    """Drop entries of the job's Linear2 rows, in place, until the FP32 sums of every token are exact in any order."""
    thin_rows(job, acts.double(), torch.ones((), dtype=torch.float64, device=acts.device))
