"""Experts in kernel order, one by one: every tensor of `TransformedWeights` has its experts outermost."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from megamoe_dsl.quant.weights import ExpertWeights, TransformedWeights, checkpoint_layout, transform_weights, weight_names

if TYPE_CHECKING:
    from megamoe_dsl.arch import Arch
    from megamoe_dsl.problem import Problem


def single_expert(problem: "Problem") -> "Problem":
    """A layer of one expert with the shape and formats of `problem`."""
    return replace(problem, num_experts=1, topk=1, num_ranks=1)


def transform_expert(problem: "Problem", arch: "Arch", expert: ExpertWeights) -> TransformedWeights:
    """One expert, El = 1, in kernel order.  Raises ValueError that names the field when it does not fit `problem`."""
    return transform_weights(single_expert(problem), arch, *(getattr(expert, name) for name in weight_names(problem)))


def new_weights(problem: "Problem", arch: "Arch", device: torch.device | str) -> TransformedWeights:
    """Memory for a rank's weights in kernel order, zero, on a device."""
    zeros = {n: torch.zeros(shape, dtype=dtype, device="cpu") for n, (dtype, shape) in checkpoint_layout(single_expert(problem)).items()}
    one, count = transform_expert(problem, arch, ExpertWeights(**zeros)), problem.experts_per_rank
    tensors = {name: getattr(one, name) for name in weight_names(problem)}
    return TransformedWeights(
        **{n: torch.zeros((count * t.shape[0], *t.shape[1:]), dtype=t.dtype, device=device) for n, t in tensors.items()}
    )


def place_expert(weights: TransformedWeights, index: int, count: int, expert: TransformedWeights) -> None:
    """Copies one expert in kernel order over the one at `index` of `count`."""
    for name, source in vars(expert).items():
        if source is None:
            continue
        target = getattr(weights, name)
        rows = target.shape[0] // count
        target[index * rows : (index + 1) * rows].copy_(source)
