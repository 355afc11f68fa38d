"""What is computed: D[g] = left[rows of g]^T x right[rows of g], of BF16 rows that a list gathers on one side and that are sorted by group
on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....problem import CHANNEL_STEP
from ..problem import F32, PACKED, GemmProblem

LEFT, RIGHT = "left", "right"
SIDES = (LEFT, RIGHT)


@dataclass(frozen=True)
class VarlenKProblem(GemmProblem):
    """Gradients of weights [num_groups, n, k] of a packed GEMM: K of the product are a group's rows, of which there may be none.  Raises
    `ProblemError`.  BF16, or FP32 that adds to what is there.

    n         columns of `left`, rows of D
    k         columns of `right` and of D
    gathered  which side has its rows gathered by a list; those of the other follow one another, sorted by group
    """

    kind: str = PACKED
    recipe: str = "bf16xbf16"
    gathered: str = RIGHT

    of_experts: ClassVar[bool] = True
    gathers: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("kind", self.kind == PACKED, f"{PACKED}: rows of groups follow one another")
        self._require("recipe", not self.formats.scaled, "bf16xbf16: operands without scales")
        self._require("biases", not self.biases, "empty: gradients have none")
        self._require("n", self.n % CHANNEL_STEP == 0, f"a multiple of {CHANNEL_STEP}")
        self._require("accumulate", self.accumulate == (self.output == F32), f"{not self.accumulate} where the output is {self.output}")
        self._require("gathered", self.gathered in SIDES, "one of " + ", ".join(SIDES))

    @property
    def transposes(self) -> bool:
        """Whether gathered columns, which are the wgmma's rows, are columns of D."""
        return self.gathered == RIGHT

    @property
    def gathered_columns(self) -> int:
        return self.k if self.transposes else self.n

    @property
    def sorted_columns(self) -> int:
        return self.n if self.transposes else self.k

    @property
    def d_columns(self) -> int:
        return self.k

    @property
    def k_blocks(self) -> int:
        """K is known on the device alone."""
        return 1
