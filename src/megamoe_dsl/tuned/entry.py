"""One measured point of a table: a layer, a number of tokens, and the configuration that won there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Share(NamedTuple):
    """What one rank computes of a layer and with how many SMs.  The number of ranks does not matter: with equally many experts per rank a
    layer behaves alike."""

    hidden: int
    intermediate: int
    experts_per_rank: int
    num_sms: int


@dataclass(frozen=True)
class Entry:
    """The configuration that was fastest at a point.

    tokens    on every rank, at least 1
    choice    fields of the configuration; num_stages = 0 is the deepest ring that fits
    us        its median time in microseconds, launches back to back
    results   name of the file in bench/results that this comes from
    """

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int
    num_sms: int
    num_ranks: int
    tokens: int
    choice: Mapping[str, int]
    us: float
    results: str

    @property
    def share(self) -> Share:
        return Share(self.hidden, self.intermediate, self.experts_per_rank, self.num_sms)

    @property
    def expected(self) -> float:
        """Tokens that an expert received, on average."""
        return self.tokens * self.topk / self.experts_per_rank

    @property
    def key(self) -> tuple[Share, float]:
        """What tells entries of a table apart."""
        return self.share, self.expected
