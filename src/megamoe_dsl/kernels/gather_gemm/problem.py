"""What is computed: a GEMM over the rows of experts, where those rows come from and where results go."""

from __future__ import annotations

from dataclasses import dataclass

from ..gemm.problem import BF16, PACKED, GemmProblem

GATHERED, SORTED_PACKED, SORTED_BLOCKED = "gathered", "packed", "blocked"
SOURCES = (GATHERED, SORTED_PACKED, SORTED_BLOCKED)
RESULTS = (SORTED_PACKED, SORTED_BLOCKED)


@dataclass(frozen=True)
class GatherGemmProblem(GemmProblem):
    """A `GemmProblem` of `num_groups` experts; how many rows each has, and which, every launch says anew (layouts/expert_rows.py).

    source  where rows of A lie: gathered  at their tokens, in any order; a list says which
                                 packed    sorted by expert, without padding
                                 blocked   sorted by expert, each in whole blocks of 128 rows
    result  where rows of D go: packed or blocked, likewise

    Raises `ProblemError`, which names field, value and what is allowed.
    """

    kind: str = PACKED
    source: str = GATHERED
    result: str = SORTED_PACKED

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("kind", self.kind == PACKED, f"{PACKED}: rows of experts follow one another")
        self._require("source", self.source in SOURCES, "one of " + ", ".join(SOURCES))
        self._require("result", self.result in RESULTS, "one of " + ", ".join(RESULTS))
        self._require("output", self.output == BF16, BF16)

    @property
    def gathers(self) -> bool:
        """Whether a list says where rows of A lie."""
        return self.source == GATHERED

    @property
    def places_rows(self) -> bool:
        """Whether an expert's rows begin elsewhere in A, in the list or in D than at the number of rows of those before it."""
        return SORTED_BLOCKED in (self.source, self.result)
