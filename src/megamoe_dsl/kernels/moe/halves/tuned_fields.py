"""Fields of the halves' configurations that were measured to be faster than those that are chosen without a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ....problem import Problem
from ....tuned import EpEntry, EpShare, tuned_layers

Half = Literal["dispatch", "combine"]
HALVES: tuple[Half, Half] = ("dispatch", "combine")


def share_of(problem: Problem) -> EpShare:
    """What a table knows of a problem, apart from its tokens."""
    return EpShare(problem.hidden, problem.intermediate, problem.experts_per_rank, problem.topk, problem.recipe)


def expected_rows(problem: Problem, num_tokens: int) -> float:
    """Rows that an expert gets on average from `num_tokens` tokens on every rank, at least one token."""
    return max(num_tokens, 1) * problem.topk / problem.experts_per_rank


def tuned_fields(half: Half, problem: Problem, num_tokens: int, gpu: str | None) -> Mapping[str, Any]:
    """Those of the measured point of this shape that is nearest, within a factor of two of the tokens; none where nobody has measured."""
    if gpu is None:
        return {}
    near: list[EpEntry] = tuned_layers(gpu).near(share_of(problem), expected_rows(problem, num_tokens))
    return (near[0].dispatch if half == "dispatch" else near[0].combine) if near else {}
