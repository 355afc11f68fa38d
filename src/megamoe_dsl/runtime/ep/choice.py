"""The layer that is fastest for what a caller has to compute between the two linears.

layer = expert_parallel(problem, weights)                          the problem's activation: in one launch, or in a launch per stage
layer = expert_parallel(problem, weights, activation=callable)     the caller's: in two halves
y = layer(x, topk_idx, topk_weights)
"""

from __future__ import annotations

from typing import Any

from ...config_error import ConfigError
from ...kernels.moe.family import MegaMoeKernel
from ...kernels.moe.halves.way import Way, fastest_way
from ...problem import Problem, ProblemError
from ...quant import ExpertWeights
from ..layer import MegaMoE, gpu_name
from .buffers import Activation
from .layer import EpMoE

AUTO = "auto"
OF_ITS_OWN = (Way.FUSED, Way.UNFUSED)
"""Ways that have the problem's activation between the linears."""


def expert_parallel(
    problem: Problem, weights: ExpertWeights, *, activation: Activation | None = None, way: Way | str = AUTO, **options: Any
) -> MegaMoE | EpMoE:
    """A layer on this rank's GPU; every rank makes the same.

    activation  the caller's, which only `EpMoE` takes; None is the problem's
    way         "auto" is what took least for `problem.max_tokens_per_rank` tokens at the measured point that is nearest
                (`fastest_way`), and the fused kernel on a GPU that nobody measured
    options     of `MegaMoE`, or of `EpMoE`

    Raises `ProblemError` for a way that does not go with the activation, for number formats that only `EpMoE` has without one, and what the
    layers raise.
    """
    among = OF_ITS_OWN if activation is None else (Way.HALVES,)
    if way != AUTO and way not in among:
        raise ProblemError("way", str(way), f"{AUTO} or {' or '.join(among)}, with {'no' if activation is None else 'an'} activation")
    if activation is not None:
        return EpMoE(problem, weights, activation=activation, **options)
    if not MegaMoeKernel.takes(problem.recipe):
        raise ProblemError("activation", None, f"a function with {problem.recipe}: only EpMoE has these number formats")
    chosen = measured_way(problem, gpu_name(weights.fc1.device)) if way == AUTO else Way(way)
    return MegaMoE(problem, weights, fused=chosen == Way.FUSED, **options)


def measured_way(problem: Problem, gpu: str) -> Way:
    """Of a layer with the problem's activation, for as many tokens as it takes."""
    try:
        return fastest_way(problem, problem.max_tokens_per_rank, among=OF_ITS_OWN, gpu=gpu)
    except ConfigError:  # nobody has measured the GPU
        return Way.FUSED
