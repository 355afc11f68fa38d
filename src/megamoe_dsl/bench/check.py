"""Checks sampled tokens of every rank against the reference, which rank 0 computes on its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..cases import TokenInputs
from ..problem import Problem
from ..quant import ExpertWeights
from ..recipe import RECIPES
from ..reference import LayerInputs, error_bound, mega_moe_stages


@dataclass(frozen=True)
class Check:
    """Sampled tokens of all ranks against the reference."""

    elements: int
    violations: int  # elements that leave the bound, NaN included
    worst: float  # largest |y - reference| / bound
    relative: float  # |y - reference| / |reference| in the 2-norm
    same_bits: float  # share of elements equal to the reference to the bit, on Hopper with the tensor core's sums

    @classmethod
    def of(cls, got: torch.Tensor, y: torch.Tensor, summed: torch.Tensor, bound: torch.Tensor) -> Check:
        """Compares y, bf16 [tokens, hidden], with the results of `expected_results`."""
        difference = (got.double() - y.double()).abs()
        ratio = torch.where(difference == 0, 0.0, difference / bound)
        return cls(
            elements=got.numel(),
            violations=int((~(difference <= bound)).sum()),
            worst=float(ratio.max()) if got.numel() else 0.0,
            relative=float(difference.norm() / y.double().norm().clamp(min=1e-30)),
            same_bits=float((got == summed).double().mean()) if got.numel() else 1.0,
        )

    @property
    def passed(self) -> bool:
        return self.violations == 0


def sample_rows(tokens: int, count: int) -> torch.Tensor:
    """int64 indices of up to `count` tokens, first and last among them."""
    return torch.linspace(0, tokens - 1, min(count, tokens)).round().long() if tokens else torch.empty(0, dtype=torch.int64)


def gather(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Tensors of all ranks, by rank, on this device; all ranks together."""
    mine = [one.contiguous().view(torch.uint8).cpu() for one in tensors]
    everyone: list[list[torch.Tensor]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    dtypes, device = [one.dtype for one in tensors], tensors[0].device
    return [[raw.view(dtype).to(device) for raw, dtype in zip(theirs, dtypes, strict=True)] for theirs in everyone]


def expected_results(
    problem: Problem, ranks: Sequence[Sequence[torch.Tensor]], weights: Sequence[ExpertWeights]
) -> tuple[torch.Tensor, ...]:
    """For all ranks' tokens (x, x_sf, topk_idx, topk_weights), rank by rank on one device: y of the reference, y with the sums of Hopper's
    tensor core, and the error bound, [tokens, hidden]."""
    x, x_sf, topk_idx, topk_weights = zip(*ranks, strict=True)
    inputs = LayerInputs(problem, x, x_sf, topk_idx, topk_weights, weights)
    exact = mega_moe_stages(inputs).y
    summed = mega_moe_stages(inputs, "hopper").y if RECIPES[problem.recipe].sums_known else exact
    return tuple(torch.cat(list(one)) for one in (exact, summed, error_bound(inputs)))


def some_tokens(inputs: TokenInputs, rows: torch.Tensor) -> list[torch.Tensor]:
    """x, x_sf, topk_idx, topk_weights of these tokens."""
    # Bytes: float8 tensors cannot be indexed on every torch build.
    x = inputs.x.view(torch.uint8)[rows].view(inputs.x.dtype)
    return [x, inputs.x_sf[rows], inputs.topk_idx[rows], inputs.topk_weights[rows]]


class Expectation:
    """The expected y of sampled tokens of all ranks.  All ranks construct it together; rank 0 gives the weights of all."""

    def __init__(self, problem: Problem, inputs: TokenInputs, rows: torch.Tensor, weights: Sequence[ExpertWeights] | None) -> None:
        self.rows = rows
        sampled = gather(some_tokens(inputs, rows))
        self.expected = None if weights is None else expected_results(problem, sampled, weights)

    def check(self, y: torch.Tensor) -> Check | None:
        """Compares every rank's rows of y; all ranks together.  None on ranks other than 0."""
        got = torch.cat([one for (one,) in gather([y[self.rows]])])
        return None if self.expected is None else Check.of(got, *self.expected)
