"""Which experts the tokens of a case go to."""

import math
from collections.abc import Sequence
from typing import SupportsIndex

import torch

from megamoe_dsl.problem import Problem, ProblemError, integer_between

CHOICES = 4  # experts per rank and slot of top-k; with fewer the fraction would be missed by more than 0.012


def routing_bias(
    problem: Problem, generator: torch.Generator, skew: bool = False, target_expert: SupportsIndex | None = None
) -> torch.Tensor:
    """Log-probability of every expert, on the generator's device; arguments and errors as `random_routing`."""
    if target_expert is not None:
        last = problem.num_experts - 1
        target_expert = integer_between("target_expert", target_expert, 0, last, f"None or 0..{last}")
    device = generator.device
    bias = torch.zeros(problem.num_experts, device=device)
    if skew:
        order = torch.randperm(problem.num_experts, generator=generator, device=device)
        bias[order] = 6.0 / (1.0 + torch.arange(problem.num_experts, device=device))
    if target_expert is not None:
        bias[target_expert] = 1e6
    return bias


def check_tokens(problem: Problem, tokens: Sequence[SupportsIndex]) -> list[int]:
    """Tokens of each rank as ints.  Raises ProblemError when they do not fit `problem`."""
    problem.check_ranks("tokens", tokens)
    return [problem.check_num_tokens(count, f"tokens[{rank}]") for rank, count in enumerate(tokens)]


def check_mask(mask: float) -> None:
    if not 0.0 <= mask <= 1.0:
        raise ProblemError("mask", mask, "between 0 and 1")


def check_remote(problem: Problem, remote: float | None) -> None:
    """Raises ProblemError unless this can be the fraction of slots that go to other ranks' experts."""
    if remote is None:
        return
    if not (problem.num_ranks > 1 and 0.0 < remote < 1.0):
        raise ProblemError("remote", remote, "None, or between 0 and 1 (exclusive) with more than one rank")
    if problem.experts_per_rank < CHOICES * problem.topk:
        allowed = f"None with fewer than {CHOICES} topk = {CHOICES * problem.topk} experts per rank: a token names an expert once"
        raise ProblemError("remote", remote, allowed)


def bias_of_rank(problem: Problem, rank: int, bias: torch.Tensor, remote: float | None) -> torch.Tensor:
    """`bias`, changed so that of this rank's slots a fraction of about `remote` goes to other ranks' experts, as evenly as before; None
    changes nothing.  Raises ProblemError."""
    check_remote(problem, remote)
    if remote is None:
        return bias
    local = slice(rank * problem.experts_per_rank, (rank + 1) * problem.experts_per_rank)
    changed = bias.clone()
    changed[local] += math.log((1 - remote) / remote * (problem.num_ranks - 1))
    return changed


def draw_experts(problem: Problem, count: int, bias: torch.Tensor, generator: torch.Generator, mask: float = 0.0) -> torch.Tensor:
    """Distinct experts for the tokens of one rank: int64 [count, topk], slots in random order, a fraction `mask` of them -1."""
    check_mask(mask)
    device = generator.device
    # Gumbel noise and the largest topk: sampling without replacement with probabilities exp(bias).
    noise = -torch.empty(count, problem.num_experts, device=device).exponential_(generator=generator).log()
    idx = (noise + bias).topk(problem.topk, dim=1).indices
    idx = idx.gather(1, torch.rand(idx.shape, generator=generator, device=device).argsort(dim=1))
    return idx.masked_fill(torch.rand(idx.shape, generator=generator, device=device) < mask, -1)


def random_routing(
    problem: Problem,
    tokens: Sequence[SupportsIndex],
    generator: torch.Generator,
    mask: float = 0.0,
    skew: bool = False,
    target_expert: SupportsIndex | None = None,
) -> list[torch.Tensor]:
    """Draw distinct experts for every token of each rank: per rank int64 [T_r, topk], the slots of a row in random order.

    mask           fraction of slots set to -1 afterwards
    skew           one random expert is chosen by most tokens, a few others by many
    target_expert  this expert is in every row; with topk = 1 all tokens go to it

    Raises `ProblemError` when an argument does not fit `problem`.
    """
    counts = check_tokens(problem, tokens)
    bias = routing_bias(problem, generator, skew, target_expert)
    return [draw_experts(problem, count, bias, generator, mask) for count in counts]
