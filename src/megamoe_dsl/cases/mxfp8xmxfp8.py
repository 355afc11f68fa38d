"""mxfp8xmxfp8: the tokens of fp8xfp4, and E4M3 weights; normal data, and data whose sums are exact in FP32.

As in fp8xfp4 Linear1 is exact by construction, here with integers up to 10 as weights, and Linear2 once its sparse rows are thinned.
"""

import torch

from megamoe_dsl.cases import fp8xfp4
from megamoe_dsl.cases.common import draw_integers
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, dequantize_e4m3, encode_e4m3, micro_scaling_of
from megamoe_dsl.reference.moe import ExpertInputs

_MAX_INTEGER = 10  # of weights; those of tokens go up to 15
_STEP = 2.0  # of products, in halves: they are integers
_RMS = 9.0 * 6.1  # of products of such integers
_EIGHTHS = 8  # E4M3 has three bits after the leading one

normal_weights, exact_x = fp8xfp4.normal_weights, fp8xfp4.exact_x


def exact_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    """Weights whose sums are exact with `exact_x`, Linear2 only once it is thinned."""
    drawn = fp8xfp4.exact_weights(problem, generator)
    fc1 = draw_integers((*drawn.fc1.shape[:-1], problem.hidden), -_MAX_INTEGER, _MAX_INTEGER + 1, generator).float()
    fc2 = micro_scaling_of(drawn.fc2).decode(drawn.fc2).float()
    fc2 *= 1 + draw_integers(fc2.shape, 0, _EIGHTHS, generator) / _EIGHTHS
    return ExpertWeights(encode_e4m3(fc1), fp8xfp4.fc1_scales(problem, generator, _RMS), encode_e4m3(fc2), drawn.fc2_sf)


def check_linear1(job: ExpertInputs) -> None:
    fp8xfp4.check_sums(job, dequantize_e4m3(job.x, job.x_sf), _STEP)


thin_linear2 = fp8xfp4.thin_linear2
