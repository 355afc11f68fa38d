"""Which compiled kernel a launch uses.

A kernel is fast when its tile suits the number of tokens that a rank receives, which depends on what all ranks send.  So the choice depends
on `num_tokens_bound`, at least the tokens of every rank.  If ranks give different bounds, results are still right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, SupportsIndex

from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import find_kernel
from ..problem import Problem, ProblemError, integer_between
from ..target import Target


class Selection:
    """Bounds that kernels are prepared for: those given, and the problem's capacity.

    Raises `ProblemError` when a bound is not between 1 and max_tokens_per_rank.
    """

    def __init__(self, problem: Problem, bounds: Sequence[SupportsIndex] = ()) -> None:
        self.problem = problem
        most = problem.max_tokens_per_rank
        given = [integer_between("bounds", bound, 1, most, f"between 1 and max_tokens_per_rank = {most}") for bound in bounds]
        self.bounds = sorted({*given, most})

    def configs(self, target: Target, **fields: Any) -> dict[int, MegaMoeConfig]:
        """Configuration of every bound, with these fields; neighbors may share one."""
        return {bound: find_kernel("mega_moe").choose(self.problem, target, bound, **fields) for bound in self.bounds}

    def select(self, num_tokens: int, num_tokens_bound: int | None = None) -> int:
        """The smallest prepared bound that covers `num_tokens_bound`, or the capacity when there is no hint.  Raises `ProblemError` when
        this rank has more tokens, padding included, than the hint, or the hint exceeds the capacity."""
        if num_tokens_bound is None:
            return self.problem.max_tokens_per_rank
        self.check("num_tokens_bound", num_tokens_bound, num_tokens, "tokens, padding included,")
        return self.bounds[bisect_left(self.bounds, num_tokens_bound)]

    def check(self, field: str, value: int, num_tokens: int, counted: str = "tokens") -> None:
        """Raises `ProblemError` unless `value` covers this rank's tokens and is within the capacity; `counted` says what was counted."""
        capacity = self.problem.max_tokens_per_rank
        if not num_tokens <= value <= capacity:
            raise ProblemError(field, value, f"between this rank's {num_tokens} {counted} and max_tokens_per_rank = {capacity}")
