"""mxf4xmxf4: the weights of fp8xfp4, and tokens in E2M1 too; normal data, and data whose sums are exact in FP32.

As in fp8xfp4 Linear1 is exact by construction, here with every E2M1 value in both operands, and Linear2 once its sparse rows are thinned.
"""

import torch

from megamoe_dsl.cases import fp8xfp4
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, dequantize_e2m1
from megamoe_dsl.reference.moe import ExpertInputs

_STEP = 0.5  # every E2M1 value is a multiple
_RMS = 2.9  # of E2M1 codes that are equally likely

normal_weights = fp8xfp4.normal_weights


def exact_x(problem: Problem, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens whose sums in Linear1 are exact (module docstring)."""
    codes = fp8xfp4.draw_bytes((count, problem.hidden // 2), 0, 256, generator)
    return codes, fp8xfp4.exact_scales(problem, count, generator)


def exact_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    return fp8xfp4.exact_weights(problem, generator, _RMS)


def check_linear1(job: ExpertInputs) -> None:
    fp8xfp4.check_sums(job, dequantize_e2m1(job.x, job.x_sf), _STEP)


def thin_linear2(job: ExpertInputs, acts: torch.Tensor, acts_sf: torch.Tensor) -> None:
    fp8xfp4.thin_rows(job, dequantize_e2m1(acts, acts_sf))
