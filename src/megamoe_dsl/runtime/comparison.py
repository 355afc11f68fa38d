"""A run against the reference, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..cases import Case


@dataclass(frozen=True)
class RankComparison:
    """y of one rank against the reference.

    elements    of y
    unequal     elements that differ from the reference's bits (0 and -0 are equal)
    violations  elements farther from it than the bound, NaN included; for an exact case the bound is 0
    max_error   largest |y - reference|
    worst       largest |y - reference| / bound; 0 when nothing differs, infinite where the bound is 0 and something differs
    """

    rank: int
    tokens: int
    elements: int
    unequal: int
    violations: int
    max_error: float
    worst: float

    @property
    def passed(self) -> bool:
        """Whether every element is within its bound."""
        return self.violations == 0


def compare(case: Case, y: Sequence[torch.Tensor]) -> list[RankComparison]:
    """Every rank's y (bf16 [T_r, hidden]) against `case.reference()` and `case.bound()`.  Raises ValueError when a shape differs."""
    pairs = zip(y, case.reference().y, case.bound(), strict=True)
    return [_compare_rank(rank, got, want, limit) for rank, (got, want, limit) in enumerate(pairs)]


def _compare_rank(rank: int, got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> RankComparison:
    if got.shape != want.shape:
        raise ValueError(f"y[{rank}]: shape {tuple(got.shape)}, allowed: {tuple(want.shape)}")
    difference = (got.double() - want.double()).abs()
    ratio = torch.where(difference == 0, 0.0, difference / limit)
    return RankComparison(
        rank=rank,
        tokens=got.shape[0],
        elements=got.numel(),
        unequal=int((~(difference == 0)).sum()),
        violations=int((~(difference <= limit)).sum()),
        max_error=float(difference.max()) if got.numel() else 0.0,
        worst=float(ratio.max()) if got.numel() else 0.0,
    )
