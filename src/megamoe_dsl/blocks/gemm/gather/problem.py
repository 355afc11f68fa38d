"""What is computed: a GEMM over the rows of experts, where those rows come from and where results go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....activation import ACTIVATIONS, SILU, Activation, GatedProduct
from ....problem import CHANNEL_STEP, MAX_CLAMP, MIN_CLAMP
from ....recipe import E2M1, E4M3, UNSCALED, Format
from ..problem import BF16, PACKED, SCALE_BLOCK, GemmProblem

GATHERED, SORTED_PACKED, SORTED_BLOCKED = "gathered", "packed", "blocked"
SOURCES = (GATHERED, SORTED_PACKED, SORTED_BLOCKED)
RESULTS = (SORTED_PACKED, SORTED_BLOCKED)
GATE_FIRST, UP_FIRST, INTERLEAVED = "gate_first", "up_first", "interleaved"
GATE_UP = ("", GATE_FIRST, UP_FIRST, INTERLEAVED)


@dataclass(frozen=True)
class GatherGemmProblem(GemmProblem):
    """A `GemmProblem` of `num_groups` experts; how many rows each has, and which, every launch says anew (layouts/expert_rows.py).

    source  where rows of A lie:
            gathered  at their tokens, in any order; a list says which
            packed    sorted by expert, without padding
            blocked   sorted by expert, each in whole blocks of 128 rows
    result  where rows of D go: packed or blocked, likewise
    gate_up  order of gate and up among the rows of B; D is then their activated product, [rows, n / 2], as Linear2 reads it (the recipe's
            format between the linears, or BF16 as `output` says). Empty: D is A x B in BF16. Otherwise gate_first, up_first, or
            interleaved, a row of gate and a row of up in turn
    activation, activation_clamp, fast_math   activation of gate and up, as in a `Problem` (activation.py)
    preactivations   also store gate and up in BF16, in the order of B's rows, for a backward pass

    Raises `ProblemError`, which names field, value and what is allowed.
    """

    kind: str = PACKED
    source: str = GATHERED
    result: str = SORTED_PACKED
    gate_up: str = ""  # type: ignore[misc]
    activation: str = SILU
    activation_clamp: float | None = None
    fast_math: bool = True
    preactivations: bool = False  # type: ignore[misc]

    outputs: ClassVar[tuple[str, ...]] = (BF16, E4M3, E2M1)
    of_experts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("kind", self.kind == PACKED, f"{PACKED}: rows of experts follow one another")
        self._require("source", self.source in SOURCES, "one of " + ", ".join(SOURCES))
        self._require("result", self.result in RESULTS, "one of " + ", ".join(RESULTS))
        self._require("gate_up", self.gate_up in GATE_UP, "one of gate_first, up_first, interleaved, or empty")
        self._require("activation", self.activation in ACTIVATIONS, "one of " + ", ".join(ACTIVATIONS))
        clamp = self.activation_clamp
        self._require(
            "activation_clamp", clamp is None or MIN_CLAMP <= clamp <= MAX_CLAMP, f"None or a number between 2^-126 and {MAX_CLAMP:g}"
        )
        self._require("activation_clamp", clamp is None or self.activates.clampable, f"None: {self.activation} limits gate and up itself")
        self._require("fast_math", isinstance(self.fast_math, bool), "True or False")
        stored = isinstance(self.preactivations, bool) and (bool(self.gate_up) or not self.preactivations)
        self._require("preactivations", stored, "True or False, and False without gate_up")
        output = self.hidden.element if self.gate_up else BF16
        self._require("output", self.output == output, output + (" of gate and up" if self.gate_up else " without gate_up"))
        block = SCALE_BLOCK if self.formats.scaled else CHANNEL_STEP
        whole = self.n % (2 * block) == 0 or not self.gate_up
        self._require("n", whole, f"a multiple of {2 * block}: gate and up of whole blocks of {block}")

    @property
    def gathers(self) -> bool:  # type: ignore[override]
        """Whether a list says where rows of A lie."""
        return self.source == GATHERED

    @property
    def hidden(self) -> Format:
        """Activated gate and up have the format that Linear2 takes, or BF16 where that has a factor, which must be known before."""
        return UNSCALED if self.has_factors and self.output == BF16 else self.formats.hidden

    @property
    def d_columns(self) -> int:
        return self.n // 2 if self.gate_up else self.n

    @property
    def output_bytes(self) -> int:
        return max(self.hidden.element_bits // 8, 1) if self.gate_up else super().output_bytes

    @property
    def activates(self) -> Activation:
        """What becomes of gate and up."""
        return ACTIVATIONS[self.activation]

    @property
    def product(self) -> GatedProduct:
        """What becomes of gate and up; top-k weights are applied where a token's results are summed."""
        clamp = self.activates.clamp if self.activation_clamp is None else self.activation_clamp
        return GatedProduct(self.activates, clamp, self.fast_math, weighed=False)

    @property
    def places_rows(self) -> bool:  # type: ignore[override]
        """Whether an expert's rows begin elsewhere in A, in the list or in D than at the number of rows of those before it."""
        return SORTED_BLOCKED in (self.source, self.result)

    @property
    def any_row(self) -> bool:
        return self.source == SORTED_PACKED
