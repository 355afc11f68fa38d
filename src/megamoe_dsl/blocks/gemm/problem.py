"""What a GEMM computes: D[M, N] = A[M, K] x B[N, K] with one matrix B (dense) or one for each group of rows (grouped), also over gathered
rows of experts.  Every constraint on a problem is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from operator import attrgetter
from typing import ClassVar

from ...activation import SILU
from ...config_error import as_integer
from ...hardware.operand_tile import ROW_BYTES, SCALES_PER_WORD
from ...problem import CHANNEL_STEP, ActivatingProblem, CheckedProblem, ProblemError, integer_between
from ...recipe import BF16, E2M1, E4M3, F32, UNSCALED, Format

DENSE, CONTIGUOUS, PACKED, ALIGNED, MASKED = "dense", "contiguous", "packed", "aligned", "masked"
KINDS = (DENSE, CONTIGUOUS, PACKED, ALIGNED, MASKED)
OUTPUTS = (BF16, F32)
INDICES = I64, I32 = "i64", "i32"  # of top-k indices
SCALE_BLOCK = 128  # values of K, and rows of B, that share an FP32 scale; values of K with a word of UE8M0 scales
GEMM_RECIPES = ("fp8xfp8", "fp8xmxfp4", "fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4", "bf16xbf16")
COLUMN_STEP = 16
ROW_BLOCK = 128  # rows that a contiguous problem gives an index of its group
MOST_GROUPS = 1024
MOST_SCALES = 4  # in a copy of 16 bytes
MOST_ROWS = 1 << 30  # counted in 32 bits with room for a tile


@dataclass(frozen=True)
class GemmProblem(CheckedProblem):
    """A GEMM without M, which each launch passes.  Raises `ProblemError` for a field out of range."""

    n: int  # columns of D, rows of B; a multiple of 16
    k: int  # a multiple of 128; for BF16 of 32 on SM90 and of 64 on SM100
    # how rows form groups:
    #   dense  one B
    #   contiguous  rows sorted by group, each group padded to blocks of 128 rows; `groups` has the group of each block
    #   packed  rows sorted by group without padding; `groups` has the end of each group's rows
    #   aligned  as packed, but each group begins at a multiple of 128 rows (DeepGEMM's psum layout)
    #   masked  every group has room for the same number of rows; `groups` has the number of valid ones
    kind: str = DENSE
    num_groups: int = 1  # number of matrices B; 1 for a dense problem
    output: str = BF16  # type of D: bf16 or f32
    accumulate: bool = False  # D += A x B; only with output f32
    recipe: str = GEMM_RECIPES[0]  # number formats of A and B, by name (recipe.py); each configuration allows those of its architecture
    biases: str = ""  # f32 or bf16: a packed problem adds a bias of this type per group and column to FP32 sums (SM90); empty: no biases
    # B is [num_groups, k, n], as in the backward pass of what is computed else; of a packed or masked problem in BF16
    transposed_b: bool = False
    # rows of each matrix of a packed problem, of which `b`, `b_sf` and `bias` begin with the first of n; 0: n
    b_rows: int = 0

    outputs: ClassVar[tuple[str, ...]] = OUTPUTS
    of_experts: ClassVar[bool] = False  # whether rows of A and of D are counted on their own, and may lie apart
    gathers: ClassVar[bool] = False  # whether a list says where rows of A lie
    places_rows: ClassVar[bool] = False
    """Whether a group's first row in A, in the list of sources or in D differs from the number of rows of the groups before it."""
    sums_rows: ClassVar[bool] = False
    """Whether K runs over the rows of a group (varlen-K); each group then has its own D."""
    transposes: ClassVar[bool] = False  # whether the wgmma's rows, columns of A, are columns of D
    gate_up: ClassVar[str] = ""
    preactivations: ClassVar[bool] = False
    gradient: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.require_positive("n", "k", "num_groups")
        self.require_multiple(COLUMN_STEP, "n")
        self.require_one_of(GEMM_RECIPES, "recipe")
        self.require_multiple(self.k_block if self.formats.scaled and not self.sums_rows else CHANNEL_STEP, "k")
        self.require_one_of(KINDS, "kind")
        most = 1 if self.kind == DENSE else MOST_GROUPS
        self.require("num_groups", self.num_groups <= most, f"at most {most} for a {self.kind} problem")
        self.require_one_of(self.outputs, "output")
        self.require_flags("accumulate", "transposed_b")
        self.require("accumulate", not self.accumulate or self.output == F32, "False where the output is bf16")
        self.require_one_of(("", *OUTPUTS), "biases")
        self.require("biases", not self.biases or self.kind == PACKED, f"empty of a {self.kind} problem")
        plain = not self.formats.scaled and self.kind in (PACKED, MASKED)
        self.require("transposed_b", plain or not self.transposed_b, "False but for a packed or masked problem in bf16xbf16")
        loaded = self.kind == PACKED and not (self.of_experts or self.decodes or self.transposed_b or self.formats.scales_in_mma)
        whole = (rows := as_integer(self.b_rows)) is not None and rows >= self.n and not (self.formats.scaled and self.n % SCALE_BLOCK)
        self.require("b_rows", rows == 0 or (loaded and whole), f"0, or n = {self.n} or more of a packed problem")

    decodes = property(attrgetter("formats.decodes"))

    @property
    def k_block(self) -> int:
        """Values of K in a K block: as many as share a scale, or as a row of a pipeline stage holds if those are fewer."""
        return min(SCALE_BLOCK, 8 * ROW_BYTES // self.formats.activations.element_bits)

    @property
    def k_blocks(self) -> int:
        """K blocks, of which the last may be partial: TMA fills it up with zeros."""
        return -(-self.k // self.k_block)

    @property
    def k_words(self) -> int:
        return self.k // (SCALES_PER_WORD * self.formats.activations.channels)

    @property
    def scale_rows(self) -> int:
        return -(-self.n // SCALE_BLOCK)

    @property
    def group_rows(self) -> int:
        """Rows of B from one group's first to the next one's."""
        return self.b_rows or self.n

    @property
    def all_rows(self) -> int:
        """Rows of B from the first that is multiplied to the last."""
        return (self.num_groups - 1) * self.group_rows + self.n

    @property
    def b_lead(self) -> tuple[int, ...]:
        """Leading dimensions of B, without K; with `b_rows` the rows of all groups in one dimension."""
        groups = (self.num_groups,) if self.has_groups else ()
        return (self.all_rows,) if self.b_rows else (*groups, self.n)

    d_columns = property(attrgetter("n"))
    tile_columns = property(attrgetter("n"))  # what `block_n` of a configuration divides

    @property
    def output_bytes(self) -> int:
        return 2 if self.output == BF16 else 4

    @property
    def row_step(self) -> int:
        """Each group is padded to a multiple of this many rows of A."""
        return ROW_BLOCK if self.kind in (CONTIGUOUS, ALIGNED) else 1

    @property
    def any_row(self) -> bool:
        """Whether a tile may begin at any row of A that TMA loads, not only at a multiple of four."""
        return self.kind == PACKED

    @property
    def scales_at_once(self) -> int:
        """K blocks whose scales of a row of A are adjacent and can be copied at once: 1, 2 or 4."""
        return gcd(self.k_blocks, MOST_SCALES) if self.formats.promoted else 1

    @property
    def has_groups(self) -> bool:
        return self.kind != DENSE

    @property
    def has_table(self) -> bool:
        """Whether a CTA keeps a table of each group's rows.  Rows after a tile may then belong to another group, so the store must not
        touch them."""
        return self.kind in (PACKED, ALIGNED, MASKED)

    def check_rows(self, rows: object, field: str = "m") -> int:
        """M as an int.  Raises `ProblemError` unless a launch accepts it."""
        number = integer_between(field, rows, 0, MOST_ROWS, f"between 0 and {MOST_ROWS}")
        if self.kind == CONTIGUOUS and number % ROW_BLOCK:
            raise ProblemError(field, number, f"a multiple of {ROW_BLOCK} for a {self.kind} problem")
        if self.kind == MASKED and number % self.num_groups:
            raise ProblemError(field, number, f"a multiple of num_groups = {self.num_groups} for a {self.kind} problem")
        return number


GATHERED, SORTED_PACKED, SORTED_BLOCKED = "gathered", "packed", "blocked"
SOURCES = (GATHERED, SORTED_PACKED, SORTED_BLOCKED)
RESULTS = (SORTED_PACKED, SORTED_BLOCKED)
GATE_FIRST, UP_FIRST, INTERLEAVED = "gate_first", "up_first", "interleaved"
GATE_UP = ("", GATE_FIRST, UP_FIRST, INTERLEAVED)
DOT_COLUMNS = 128  # columns of sums of which a gradient's product with activated ones is one number


@dataclass(frozen=True)
class GatherGemmProblem(ActivatingProblem, GemmProblem):
    """A grouped GEMM over the rows of `num_groups` experts, which each launch passes (kernel_cases/gather.py).  Raises `ProblemError`."""

    kind: str = PACKED
    # order of the rows of A:
    #   gathered  token order; a list has the token of each row
    #   packed  sorted by expert, without padding
    #   blocked  sorted by expert, each in whole blocks of 128 rows
    source: str = GATHERED
    result: str = SORTED_PACKED  # order of the rows of D: packed or blocked
    # order of gate and up among the rows of B: gate_first, up_first, interleaved; D is then the activated product, [rows, n / 2], in the
    # format of Linear2's input or in BF16 (`output`). Empty: D is A x B in BF16
    gate_up: str = ""  # type: ignore[misc]
    activation: str = SILU  # name of the activation of gate and up (activation.py)
    activation_clamp: float | None = None  # clamp of gate and up, as in `Problem`
    fast_math: bool = True  # approximate exponential and reciprocal, as in `Problem`
    preactivations: bool = False  # type: ignore[misc]  # also store gate and up in BF16, in the order of B's rows, for a backward pass
    # order of stored gate and up, of whose activated product the sums are gradients; D are then those of gate and up, [rows, 2 n].
    # Empty: sums are nothing of the kind. In BF16, FP8 or MXFP8
    gradient: str = ""  # type: ignore[misc]

    outputs: ClassVar[tuple[str, ...]] = (BF16, E4M3, E2M1)
    of_experts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("kind", self.kind == type(self).kind, type(self).kind)
        self.require_one_of(SOURCES, "source")
        self.require_one_of(RESULTS, "result")
        self.require_one_of(GATE_UP, "gate_up", "gradient")
        self.check_activation()
        stored = isinstance(self.preactivations, bool) and (bool(self.gate_up) or not self.preactivations)
        self.require("preactivations", stored, "True or False, and False without gate_up")
        output = self.hidden.element if self.gate_up else BF16
        self.require("output", self.output == output, output + (" of gate and up" if self.gate_up else " without gate_up"))
        plain = self.recipe in SUMMED_RECIPES and not (self.gate_up or self.biases or self.places_rows)
        among = " or ".join(SUMMED_RECIPES)
        self.require("gradient", plain or not self.gradient, f"empty but for packed results in {among} without gate_up and biases")
        block = SCALE_BLOCK if self.formats.scaled else CHANNEL_STEP
        if self.gate_up:
            self.require_multiple(2 * block, "n", where=f": gate and up of whole blocks of {block}")

    @property
    def gathers(self) -> bool:  # type: ignore[override]
        return self.source == GATHERED

    @property
    def hidden(self) -> Format:
        """Format of activated gate and up: that of Linear2's input, or BF16 if that format needs a factor that is not known yet."""
        return UNSCALED if self.formats.weights.factor and self.output == BF16 else self.formats.hidden

    @property
    def d_columns(self) -> int:
        return 2 * self.n if self.gradient else self.n // 2 if self.gate_up else self.n

    @property
    def output_bytes(self) -> int:
        return max(self.hidden.element_bits // 8, 1) if self.gate_up else super().output_bytes

    @property
    def places_rows(self) -> bool:  # type: ignore[override]
        return SORTED_BLOCKED in (self.source, self.result)

    @property
    def any_row(self) -> bool:
        return self.source == SORTED_PACKED


@dataclass(frozen=True)
class PooledRowsProblem(GatherGemmProblem):
    """The same over rows of a pool, in which each expert's rows begin at a block: row i of D belongs to row i of A."""

    kind: str = MASKED
    source: str = SORTED_PACKED

    of_experts: ClassVar[bool] = False
    any_row: ClassVar[bool] = False  # type: ignore[assignment]


LEFT, RIGHT = "left", "right"
SIDES = (LEFT, RIGHT)
SUMMED_RECIPES = ("bf16xbf16", "fp8xfp8", "mxfp8xmxfp8")


@dataclass(frozen=True)
class VarlenKProblem(GemmProblem):
    """Gradients of weights [num_groups, n, k] of a packed or aligned GEMM (varlen-K): K runs over a group's rows, perhaps none.
    D is BF16, or FP32 to which the kernel adds.  Raises `ProblemError`.

    n         columns of `left`, rows of D
    k         columns of `right` and of D
    """

    kind: str = PACKED
    recipe: str = "bf16xbf16"
    # in bf16xbf16, which side has its rows gathered by a list; those of the other follow one another, sorted by group.  Empty in other
    # formats: both sides lie transposed, a scale for each column and 128 rows, of MXFP8 32, and a group's rows fill multiples of 128
    gathered: str = RIGHT

    of_experts: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True
    k_blocks: ClassVar[int] = 1  # type: ignore[assignment]  # K is known on the device only

    def __post_init__(self) -> None:
        super().__post_init__()
        follow = self.kind == PACKED or (self.kind == ALIGNED and not self.formats.scaled)
        self.require("kind", follow, f"{PACKED}, or in bf16xbf16 {ALIGNED}: rows of groups follow one another")
        self.require_one_of(SUMMED_RECIPES, "recipe")
        self.require("biases", not self.biases, "empty: gradients have none")
        self.require_multiple(CHANNEL_STEP, "n")
        self.require("accumulate", self.accumulate == (self.output == F32), f"{not self.accumulate} where the output is {self.output}")
        if self.formats.scaled:
            self.require("gathered", not self.gathered, f"empty with {self.recipe}")
        else:
            self.require_one_of(SIDES, "gathered")

    @property
    def gathers(self) -> bool:  # type: ignore[override]
        return bool(self.gathered)

    @property
    def transposes(self) -> bool:  # type: ignore[override]
        return self.gathered == RIGHT

    @property
    def tile_rows(self) -> int:
        """Rows of a group's D as tiles see it: the columns of the gathered side, or of `left`."""
        return self.k if self.transposes else self.n

    @property
    def tile_columns(self) -> int:
        return self.n if self.transposes else self.k

    d_columns = property(attrgetter("k"))
