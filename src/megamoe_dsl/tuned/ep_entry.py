"""One measured point of a table of expert-parallel layers: a shape, tokens, and which fields its halves are faster with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from .field_types import require_types


class EpShare(NamedTuple):
    """What a rank's part of a layer is apart from its tokens."""

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int
    recipe: str


@dataclass(frozen=True)
class EpEntry:
    """What was measured with so many tokens of each rank.

    results   name of the file in bench/results that this comes from
    dispatch, combine   fields with which these halves are faster than with those that are chosen without a table
    """

    SUFFIX: ClassVar[str] = "-ep"

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int
    tokens: int
    results: str
    recipe: str = "fp8xfp8"
    dispatch: Mapping[str, int] = field(default_factory=dict)
    combine: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_types(self)

    @property
    def share(self) -> EpShare:
        """What was measured, apart from the tokens."""
        return EpShare(self.hidden, self.intermediate, self.experts_per_rank, self.topk, self.recipe)

    @property
    def expected(self) -> float:
        """Tokens of an expert, all ranks together."""
        return self.tokens * self.topk / self.experts_per_rank

    @property
    def key(self) -> tuple[EpShare, float]:
        """What tells entries of a table apart."""
        return self.share, self.expected
