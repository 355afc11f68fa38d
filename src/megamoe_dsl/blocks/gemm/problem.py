"""What is computed: D[M, N] = A[M, K] x B[N, K], of one matrix B or of one for each group of rows.  Every constraint is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from ...hardware.operand_tile import ROW_BYTES, SCALES_PER_WORD
from ...integer import as_integer
from ...problem import CHANNEL_STEP, ProblemError, integer_between
from ...recipe import E2M1, RECIPES, Recipe

DENSE, CONTIGUOUS, PACKED, ALIGNED, MASKED = "dense", "contiguous", "packed", "aligned", "masked"
KINDS = (DENSE, CONTIGUOUS, PACKED, ALIGNED, MASKED)
BF16, F32 = "bf16", "f32"
OUTPUTS = (BF16, F32)
SCALE_BLOCK = 128  # values of K, and rows of B, that share an FP32 scale; values of K with a word of UE8M0 scales
GEMM_RECIPES = ("fp8xfp8", "fp8xmxfp4", "fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4", "bf16xbf16")
COLUMN_STEP = 16
ROW_BLOCK = 128  # rows that a contiguous problem gives an index of its group
MOST_GROUPS = 1024
MOST_SCALES = 4  # in a copy of 16 bytes
MOST_ROWS = 1 << 30  # counted in 32 bits with room for a tile


@dataclass(frozen=True)
class GemmProblem:
    """Everything of a GEMM but M, which every launch says anew.

    n           columns of D, rows of B; a multiple of 16
    k           a multiple of 128; of BF16 of 32, on SM100 of 64
    kind        how rows form groups:
                dense       one B
                contiguous  rows sorted by group, every group padded to whole blocks of 128 rows; an index of the group for each block
                packed      rows sorted by group without padding; the end of each group's rows
                aligned     the same, but every group begins at a multiple of 128 rows (DeepGEMM's psum layout); SM90
                masked      room for as many rows in every group; how many of them are there is known on the device
    num_groups  matrices B; 1 of a dense problem
    output      type of D: bf16 or f32
    accumulate  D += A x B; only with output f32
    recipe      number formats of A and B, by name (recipe.py): SM90 has fp8xfp8, fp8xmxfp4 and bf16xbf16, SM100 fp8xfp4, mxf4xmxf4,
                mxfp8xmxfp8, nvfp4xnvfp4 and bf16xbf16
    biases      type of the biases, f32 or bf16, one for each group and column of a packed problem, added to FP32 sums (SM90); empty: none

    Raises `ProblemError`, which names field, value and what is allowed.
    """

    n: int
    k: int
    kind: str = DENSE
    num_groups: int = 1
    output: str = BF16
    accumulate: bool = False
    recipe: str = GEMM_RECIPES[0]
    biases: str = ""

    outputs: ClassVar[tuple[str, ...]] = OUTPUTS
    of_experts: ClassVar[bool] = False
    """Whether rows of A and of D are counted on their own, and may lie apart."""
    gathers: ClassVar[bool] = False
    """Whether a list says where rows of A lie."""
    places_rows: ClassVar[bool] = False
    """Whether a group's rows begin elsewhere in A, in the list or in D than at the number of rows of those before it."""
    gate_up: ClassVar[str] = ""
    preactivations: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in ("n", "k", "num_groups"):
            value = as_integer(getattr(self, field))
            if value is None or value < 1:
                raise ProblemError(field, getattr(self, field), "a positive integer")
            object.__setattr__(self, field, value)
        self._require("n", self.n % COLUMN_STEP == 0, f"a multiple of {COLUMN_STEP}")
        self._require("recipe", self.recipe in GEMM_RECIPES, "one of " + ", ".join(GEMM_RECIPES))
        step = self.k_block if self.formats.scaled else CHANNEL_STEP
        self._require("k", self.k % step == 0, f"a multiple of {step}")
        self._require("kind", self.kind in KINDS, "one of " + ", ".join(KINDS))
        most = 1 if self.kind == DENSE else MOST_GROUPS
        self._require("num_groups", self.num_groups <= most, f"at most {most} for a {self.kind} problem")
        self._require("output", self.output in self.outputs, "one of " + ", ".join(self.outputs))
        self._require("accumulate", isinstance(self.accumulate, bool), "True or False")
        self._require("accumulate", not self.accumulate or self.output == F32, "False where the output is bf16")

        self._require("biases", self.biases in ("", *OUTPUTS), "f32, bf16 or empty")
        self._require("biases", not self.biases or self.kind == PACKED, f"empty of a {self.kind} problem")

    def _require(self, field: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ProblemError(field, getattr(self, field), allowed)

    @property
    def formats(self) -> Recipe:
        return RECIPES[self.recipe]

    @property
    def decodes(self) -> bool:
        """Whether a kernel decodes B, E2M1, for a tensor core that multiplies E4M3; B then comes in tiles (hardware/packed_tile.py)."""
        return self.formats.promoted and self.formats.weights.element == E2M1

    @property
    def k_block(self) -> int:
        """Values of K that are counted together: those of a scale, where rows of a stage have as many or more, else those of such a row."""
        return min(SCALE_BLOCK, 8 * ROW_BYTES // self.formats.activations.element_bits)

    @property
    def k_blocks(self) -> int:
        """Blocks of `k_block` of K, of which the last may be partial: what lies beyond K counts as zero."""
        return -(-self.k // self.k_block)

    @property
    def k_words(self) -> int:
        """Words of a row's scales, where they are bytes."""
        return self.k // (SCALES_PER_WORD * self.formats.activations.channels)

    @property
    def scale_rows(self) -> int:
        """Rows of one B's scales."""
        return -(-self.n // SCALE_BLOCK)

    @property
    def has_factors(self) -> bool:
        """Whether D is multiplied with a factor of its group."""
        return self.formats.weights.factor

    @property
    def d_columns(self) -> int:
        return self.n

    @property
    def output_bytes(self) -> int:
        return 2 if self.output == BF16 else 4

    @property
    def has_table(self) -> bool:
        """Whether a CTA has a table of where each group's rows lie."""
        return self.kind in (PACKED, ALIGNED, MASKED)

    @property
    def row_step(self) -> int:
        """Rows to which each group's are filled up in A."""
        return ROW_BLOCK if self.kind in (CONTIGUOUS, ALIGNED) else 1

    @property
    def any_row(self) -> bool:
        """Whether a tile may begin at any row of A that TMA loads, not only at a multiple of four."""
        return self.kind == PACKED

    @property
    def scales_at_once(self) -> int:
        """Scales of a row of A that follow one another and can be copied together: of 1, 2 or 4 K blocks."""
        return gcd(self.k_blocks, MOST_SCALES) if self.formats.promoted else 1

    @property
    def has_groups(self) -> bool:
        """Whether rows belong to groups."""
        return self.kind != DENSE

    @property
    def has_partial_tiles(self) -> bool:
        """Whether rows that follow a tile's may belong to another group, so that the store must leave them alone."""
        return self.has_table

    def check_rows(self, rows: object, field: str = "m") -> int:
        """M as an int.  Raises `ProblemError` for one that no launch takes."""
        number = integer_between(field, rows, 0, MOST_ROWS, f"between 0 and {MOST_ROWS}")
        if self.kind == CONTIGUOUS and number % ROW_BLOCK:
            raise ProblemError(field, number, f"a multiple of {ROW_BLOCK} for a {self.kind} problem")
        if self.kind == MASKED and number % self.num_groups:
            raise ProblemError(field, number, f"a multiple of num_groups = {self.num_groups} for a {self.kind} problem")
        return number
