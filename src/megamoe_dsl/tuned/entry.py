"""One measured point of a table: a layer, a number of tokens, and the configuration that won there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from .field_types import require_types

FP8 = "fp8xfp8"  # of entries that do not say


class Share(NamedTuple):
    """What one rank computes of a layer and with how many SMs.  The number of ranks does not matter: with equally many experts per rank a
    layer behaves alike."""

    hidden: int
    intermediate: int
    experts_per_rank: int
    num_sms: int
    recipe: str = FP8


SHARED = {"block_m", "lookahead", "num_stages"}
CHOICES = (frozenset({*SHARED, "cluster"}), frozenset({*SHARED, "store_block_m", "epilogue_warpgroups", "block_k"}))
"""The fields that a configuration is chosen by, on SM90 and on SM100."""


@dataclass(frozen=True)
class Entry:
    """The configuration that was fastest at a point, under the routing of that run: uniform, or with more traffic between the GPUs.

    tokens    on every rank, at least 1
    choice    the fields of the configuration, one of `CHOICES`; num_stages = 0 is the deepest ring that fits
    us        its median time in microseconds, launches back to back
    results   name of the file in bench/results that this comes from
    recipe    number formats, by name
    """

    SUFFIX: ClassVar[str] = ""

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
    recipe: str = FP8

    def __post_init__(self) -> None:
        require_types(self)
        if self.choice.keys() not in CHOICES:
            allowed = " or ".join(", ".join(sorted(one)) for one in CHOICES)
            raise ValueError(f"choice = {dict(self.choice)}: must have the fields {allowed}")

    @property
    def share(self) -> Share:
        """What a GPU has of the layer that was measured."""
        return Share(self.hidden, self.intermediate, self.experts_per_rank, self.num_sms, self.recipe)

    @property
    def expected(self) -> float:
        """Tokens that an expert received, on average."""
        return self.tokens * self.topk / self.experts_per_rank

    @property
    def key(self) -> tuple[Share, float]:
        """What tells entries of a table apart."""
        return self.share, self.expected
