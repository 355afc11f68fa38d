"""One measured point of a table of GEMMs: a problem, rows, and the configuration that won there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from .field_types import require_types


class GemmShare(NamedTuple):
    """What a GEMM is apart from its rows."""

    n: int
    k: int
    kind: str
    num_groups: int
    num_sms: int
    recipe: str


@dataclass(frozen=True)
class GemmEntry:
    """The configuration that was fastest for so many rows, divided equally among the groups.

    choice    fields of the configuration that are not their defaults
    us        its median time in microseconds, in a CUDA graph
    results   name of the file in bench/results that this comes from
    recipe    number formats
    """

    SUFFIX: ClassVar[str] = "-gemm"

    n: int
    k: int
    kind: str
    num_groups: int
    num_sms: int
    rows: int
    choice: Mapping[str, int]
    us: float
    results: str
    recipe: str = "fp8xfp8"

    def __post_init__(self) -> None:
        require_types(self)

    @property
    def share(self) -> GemmShare:
        """What was measured, apart from the rows."""
        return GemmShare(self.n, self.k, self.kind, self.num_groups, self.num_sms, self.recipe)

    @property
    def expected(self) -> float:
        return self.rows / self.num_groups

    @property
    def key(self) -> tuple[GemmShare, float]:
        """What tells entries of a table apart."""
        return self.share, self.expected
