"""Correctness of a few tokens of every rank against the reference, computed on rank 0's GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..cases import TokenInputs
from ..problem import Problem
from ..quant import ExpertWeights
from ..reference import error_bound, mega_moe_stages

TOLERANCE = "every element of the sampled tokens within reference.error_bound, tensor-core sums of 14 bits included"


@dataclass(frozen=True)
class Check:
    """Sampled tokens of all ranks against the reference.

    violations  elements that leave the bound, NaN included
    worst       largest |y - reference| / bound
    relative    |y - reference| / |reference| in the 2-norm
    same_bits   share of elements equal to the reference with the tensor core's sums to the bit
    """

    elements: int
    violations: int
    worst: float
    relative: float
    same_bits: float

    @property
    def passed(self) -> bool:
        return self.violations == 0


def sample_rows(tokens: int, count: int) -> torch.Tensor:
    """int64 indices of up to `count` tokens, first and last among them."""
    return torch.linspace(0, tokens - 1, min(count, tokens)).round().long() if tokens else torch.empty(0, dtype=torch.int64)


def gather(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors of every rank, on this device; all ranks together."""
    mine = [one.contiguous().view(torch.uint8).cpu() for one in tensors]
    everyone: list[list[torch.Tensor]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    dtypes, device = [one.dtype for one in tensors], tensors[0].device
    return [[raw.view(dtype).to(device) for raw, dtype in zip(theirs, dtypes, strict=True)] for theirs in everyone]


class Expectation:
    """What sampled tokens of all ranks should be; all ranks construct it together, rank 0 gives the weights of all."""

    def __init__(self, problem: Problem, inputs: TokenInputs, rows: torch.Tensor, weights: Sequence[ExpertWeights] | None) -> None:
        self.rows = rows
        # Bytes: float8 tensors cannot be indexed on every torch build.
        x = inputs.x.view(torch.uint8)[rows].view(inputs.x.dtype)
        sampled = gather([x, inputs.x_sf[rows], inputs.topk_idx[rows], inputs.topk_weights[rows]])
        self.result: tuple[torch.Tensor, ...] | None = None
        if weights is not None:
            x_all, sf_all, idx_all, scale_all = ([theirs[i] for theirs in sampled] for i in range(4))
            arguments = (problem, x_all, sf_all, idx_all, scale_all, weights)
            want, hopper = mega_moe_stages(*arguments).y, mega_moe_stages(*arguments, "hopper").y
            bound = error_bound(*arguments)
            self.result = tuple(torch.cat(list(one)) for one in (want, hopper, bound))

    def check(self, y: torch.Tensor) -> Check | None:
        """Compares every rank's rows of y; all ranks together.  None on ranks other than 0."""
        got = torch.cat([one for (one,) in gather([y[self.rows]])])
        if self.result is None:
            return None
        want, hopper, bound = self.result
        difference = (got.double() - want.double()).abs()
        ratio = torch.where(difference == 0, 0.0, difference / bound)
        norm = want.double().norm().clamp(min=1e-30)
        return Check(
            elements=got.numel(),
            violations=int((~(difference <= bound)).sum()),
            worst=float(ratio.max()) if got.numel() else 0.0,
            relative=float(difference.norm() / norm),
            same_bits=float((got == hopper).double().mean()) if got.numel() else 1.0,
        )


def relative_difference(y: torch.Tensor, other: torch.Tensor) -> float:
    """|y - other| / |other| in the 2-norm over all tokens of all ranks; all ranks together."""
    sums = torch.stack([(y.double() - other.double()).square().sum(), other.double().square().sum()])
    dist.all_reduce(sums)
    return float((sums[0] / sums[1].clamp(min=1e-30)).sqrt())
