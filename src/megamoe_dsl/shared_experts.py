"""Shared experts: every rank has a copy of them, and all its tokens use them with weight 1, without communication.

Kernels treat them as routed experts: they are the last experts of each rank, and the last slots of the rank's own tokens choose them.  So
the fused launch computes their tiles after those of the rank's other experts, and combine adds their results to the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .config_error import as_integer
from .problem import Problem, ProblemError


@dataclass(frozen=True)
class SharedExperts:
    """`count` shared experts on each rank beside the experts of `routed`, with the same shape.

    whole  the problem that kernels compute: the last experts of each rank, and the last slots of each token, are shared ones

    Raises `ProblemError` for a count that is no integer of 0 or more, or with which top-k is beyond what a kernel takes.
    """

    routed: Problem
    count: int
    whole: Problem = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        number = as_integer(self.count)
        if number is None or number < 0:
            raise ProblemError("shared_experts", self.count, "an integer, 0 or more")
        object.__setattr__(self, "count", number)
        routed, experts = self.routed, number * self.routed.num_ranks
        try:
            whole = replace(routed, num_experts=routed.num_experts + experts, topk=routed.topk + number)
        except ProblemError as error:
            raise ProblemError("shared_experts", number, f"fewer: with them {error}") from None
        object.__setattr__(self, "whole", whole)

    @classmethod
    def within(cls, whole: Problem, count: int) -> SharedExperts:
        routed = replace(whole, num_experts=whole.num_experts - count * whole.num_ranks, topk=whole.topk - count)
        return cls(routed, count)

    def first_of(self, rank: int) -> int:
        """Index in `whole` of a rank's first shared expert."""
        return rank * self.whole.experts_per_rank + self.routed.experts_per_rank

    def number_of(self, expert: Any) -> Any:
        """Index in `whole` of a routed expert: an int, a tensor or a traced integer."""
        return expert + expert // self.routed.experts_per_rank * self.count
