"""Routing limited to groups: the experts of a token lie in a few groups of neighbors, as DeepSeek-V3 chooses them."""

from __future__ import annotations

import torch

from megamoe_dsl.problem import Problem, ProblemError, integer_between


def group_bias(problem: Problem, count: int, groups: int, chosen: int, generator: torch.Generator) -> torch.Tensor:
    """Log-probability of every expert for each of `count` tokens, whose experts lie in `chosen` of `groups` equal groups of experts that
    follow one another, each token's own.  Raises ProblemError where groups are unequal, or those chosen have fewer experts than top-k."""
    if groups < 1 or problem.num_experts % groups:
        raise ProblemError("groups", groups, f"a divisor of num_experts = {problem.num_experts}")
    least = -(-problem.topk * groups // problem.num_experts)
    integer_between("chosen", chosen, least, groups, f"between {least} and groups = {groups}")
    device = generator.device
    taken = torch.rand(count, groups, generator=generator, device=device).argsort(dim=1) < chosen
    return torch.where(taken, 0.0, -torch.inf).repeat_interleave(problem.num_experts // groups, dim=1)
