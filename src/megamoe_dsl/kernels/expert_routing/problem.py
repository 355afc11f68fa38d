"""Tokens on one GPU and their experts.  Every constraint is checked here."""

from __future__ import annotations

from dataclasses import dataclass

from ...problem import MAX_TOPK, ProblemError, integer_between
from ...recipe import RECIPES, Recipe
from ..gemm.problem import GEMM_RECIPES, MOST_GROUPS, SCALE_BLOCK

MOST_SLOTS = 1 << 27
"""Of all tokens together: rows are counted in 32 bits, with room."""


@dataclass(frozen=True)
class RoutingProblem:
    """`hidden` channels of a token, a multiple of 128; its `topk` of `num_experts` experts, at most 1024; tokens become activations of a
    `recipe` (recipe.py).

    Raises `ProblemError`, which names field, value and what is allowed.
    """

    hidden: int
    num_experts: int
    topk: int
    recipe: str = GEMM_RECIPES[0]

    def __post_init__(self) -> None:
        limits = {"hidden": 1 << 20, "num_experts": MOST_GROUPS, "topk": MAX_TOPK}
        for field, most in limits.items():
            object.__setattr__(self, field, integer_between(field, getattr(self, field), 1, most, f"between 1 and {most}"))
        if self.hidden % SCALE_BLOCK:
            raise ProblemError("hidden", self.hidden, f"a multiple of {SCALE_BLOCK}")
        if self.topk > self.num_experts:
            raise ProblemError("topk", self.topk, f"at most num_experts = {self.num_experts}")
        if self.recipe not in GEMM_RECIPES:
            raise ProblemError("recipe", self.recipe, "one of " + ", ".join(GEMM_RECIPES))

    @property
    def formats(self) -> Recipe:
        """Of tokens, `activations`, and what follows."""
        return RECIPES[self.recipe]

    def check_tokens(self, tokens: object, field: str = "num_tokens") -> int:
        """As an int.  Raises `ProblemError` for a number that no launch takes."""
        most = MOST_SLOTS // self.topk
        return integer_between(field, tokens, 0, most, f"between 0 and {most}")
