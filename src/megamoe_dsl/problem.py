"""What is computed: the shape and numerics of one expert-parallel MoE layer.  Every constraint on them is checked here and only here."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Self, SupportsIndex

from .activation import ACTIVATIONS, SILU, Activation, GatedProduct
from .config_error import FieldError, as_integer
from .recipe import BF16, COMBINE, RECIPES, Recipe

MAX_TOPK = 32  # one lane of a warp per top-k slot
MAX_RANKS = 128  # one thread of the dispatch warps per rank, which tells it that this one has arrived
MAX_HIDDEN = 1 << 18
MAX_INTERMEDIATE = 16384
CHANNEL_STEP = 32  # of hidden and intermediate: whole UE8M0 scales, and rows of any element that bulk copies can move
MIN_CLAMP = 2.0**-126  # the smallest normal BF16: a smaller number could be rounded to a clamp of 0
MAX_CLAMP = 1e15  # gate times up stays far within FP32, and the number has no exponent where a kernel's name carries it
MAX_RECEIVED = 1 << 27  # pool tokens of a rank: rows, and the 8 scale words a row can take, are counted in 32 bits


class ProblemError(FieldError):
    """A field of a `Problem`, or an argument checked against one, is out of range."""


def integer_between(field: str, value: object, low: int, high: int, allowed: str) -> int:
    """The value as an int.  Raises `ProblemError` for what is no integer, and, saying what is `allowed`, for one out of [low, high]."""
    number = as_integer(value)
    if number is None:
        raise ProblemError(field, value, "an integer")
    if not low <= number <= high:
        raise ProblemError(field, number, allowed)
    return number


class CheckedProblem:
    """Base of problems: frozen dataclasses that check their fields when they are made, with number formats by name."""

    recipe: str

    def require(self, field: str, holds: bool, allowed: str) -> None:
        """Raises `ProblemError` that names field, value and what is allowed, unless `holds`."""
        if not holds:
            raise ProblemError(field, getattr(self, field), allowed)

    def require_one_of(self, allowed: Sequence[str], *fields: str) -> None:
        """Requires each of the fields to be one of the allowed texts."""
        for field in fields:
            value = getattr(self, field)
            listed = "one of " + ", ".join(filter(None, allowed)) + (", or empty" if "" in allowed else "")
            self.require(field, isinstance(value, str) and value in allowed, listed)

    def require_multiple(self, step: int, *fields: str, where: str = "") -> None:
        """Requires the fields to be multiples of `step`."""
        for field in fields:
            self.require(field, getattr(self, field) % step == 0, f"a multiple of {step}{where}")

    def require_positive(self, *fields: str) -> None:
        """Requires positive integers, and converts them to int, so that equal problems compare and hash equal."""
        for field in fields:
            value = as_integer(getattr(self, field))
            self.require(field, value is not None and value > 0, "a positive integer")
            object.__setattr__(self, field, value)

    def require_up_to(self, least: int = 1, **most: int) -> None:
        """Requires integers from `least` to the given numbers, as in topk=32."""
        for field, one in most.items():
            object.__setattr__(self, field, integer_between(field, getattr(self, field), least, one, f"between {least} and {one}"))

    def require_flags(self, *fields: str) -> None:
        """Requires fields to be True or False."""
        for field in fields:
            self.require(field, isinstance(getattr(self, field), bool), "True or False")

    @property
    def formats(self) -> Recipe:
        return RECIPES[self.recipe]


class ActivatingProblem(CheckedProblem):
    """Base of problems that activate gate and up; by default top-k weights are applied where a token's results are summed."""

    activation: str
    activation_clamp: float | None
    fast_math: bool
    weigh_results: bool = True

    def check_activation(self) -> None:
        """Raises `ProblemError` for an unknown activation, a bad clamp, and a clamp with an activation that takes none."""
        self.require_one_of(tuple(ACTIVATIONS), "activation")
        self.require_flags("fast_math")
        clamp = self.activation_clamp
        good = clamp is None or (isinstance(clamp, Real) and not isinstance(clamp, bool) and MIN_CLAMP <= clamp <= MAX_CLAMP)
        self.require("activation_clamp", good, f"None or a number between 2^-126 and {MAX_CLAMP:g}")
        self.require("activation_clamp", clamp is None or self.activates.clampable, f"None: {self.activation} limits gate and up itself")

    @property
    def activates(self) -> Activation:
        return ACTIVATIONS[self.activation]

    @property
    def product(self) -> GatedProduct:
        clamp = self.activates.clamp if self.activation_clamp is None else self.activation_clamp
        return GatedProduct(self.activates, clamp, self.fast_math, not self.weigh_results)


@dataclass(frozen=True)
class Problem(ActivatingProblem):
    """One MoE layer over `num_ranks` GPUs: y = sum over top-k of weight * W2[e] @ activation(W1[e] @ x).

    hidden                channels of x and y (multiple of 32, at most 2^18)
    intermediate          channels between the two linears (multiple of 32, at most 16384)
    num_experts           experts of all ranks, a multiple of num_ranks; rank r owns [r * experts_per_rank, (r + 1) * experts_per_rank)
    topk                  experts per token, 1 to 32
    num_ranks             GPUs of the NVLink domain, 1 to 128
    max_tokens_per_rank   capacity of the symmetric buffer; what a rank can receive in the worst case must stay below 2^27 tokens
    recipe                number formats, by name (recipe.py)
    activation_clamp      c from 2^-126 to 1e15: gate is clamped to <= c and up to [-c, c], in BF16 (article 4.5.4.5).  None: the default
                          clamp of the activation, if it has one
    fast_math             approximate exponential and reciprocal in the activation
    combine               element type of the results that go back to the token's rank: bf16, or e4m3 with a UE8M0 scale per 128 channels
    activation            name of the activation of gate and up (activation.py)
    biases                both linears of every expert have a bias for each row: fc1_bias and fc2_bias of the weights
    weigh_results         True: combine multiplies results by top-k weights; False: Linear2's input is multiplied by them

    Raises `ProblemError`, which names field, value and what is allowed.
    """

    hidden: int
    intermediate: int
    num_experts: int
    topk: int
    num_ranks: int = 1
    max_tokens_per_rank: int = 128
    recipe: str = "fp8xfp4"
    activation_clamp: float | None = None
    fast_math: bool = True
    combine: str = BF16
    activation: str = SILU
    biases: bool = False
    weigh_results: bool = False

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Raises `ProblemError` for `pool_rows`, which is an argument of `MegaMoE` and `choose`."""
        if "pool_rows" in fields:
            raise ProblemError("pool_rows", fields["pool_rows"], "given to MegaMoE(..., pool_rows=N) or choose(..., pool_rows=N)")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.require_positive("hidden", "intermediate", "num_experts", "topk", "num_ranks", "max_tokens_per_rank")
        self.require_multiple(CHANNEL_STEP, "hidden", "intermediate")
        for field, most in (("hidden", MAX_HIDDEN), ("intermediate", MAX_INTERMEDIATE), ("num_ranks", MAX_RANKS), ("topk", MAX_TOPK)):
            self.require(field, getattr(self, field) <= most, f"at most {most}")
        self.require("num_experts", self.num_experts % self.num_ranks == 0, f"a multiple of num_ranks = {self.num_ranks}")
        self.require("topk", self.topk <= self.num_experts, f"at most num_experts = {self.num_experts}")
        copies, few = self.num_ranks * self.max_experts_per_token, self.most_received < MAX_RECEIVED
        self.require("max_tokens_per_rank", few, f"less than 2^27 / {copies}: pool rows are counted in 32 bits")
        self.require_one_of(tuple(RECIPES), "recipe")
        self.check_activation()
        if self.product.clamp is not None:  # 10 and 10.0 are one problem, and have one name in an ArtifactStore
            object.__setattr__(self, "activation_clamp", float(self.product.clamp))
        self.require_flags("biases", "weigh_results")
        self.require("combine", isinstance(self.combine, str) and self.combine in COMBINE, " or ".join(COMBINE))

    @cached_property
    def formats(self) -> Recipe:
        return replace(super().formats, combine=COMBINE[self.combine])

    @property
    def label(self) -> str:
        """Shape, experts, top-k, ranks and most tokens of a rank, for the name of a file."""
        shape = f"{self.hidden}x{self.intermediate}-e{self.num_experts}-k{self.topk}"
        return f"{shape}-r{self.num_ranks}-t{self.max_tokens_per_rank}"

    @property
    def experts_per_rank(self) -> int:
        return self.num_experts // self.num_ranks

    @property
    def max_experts_per_token(self) -> int:
        """Copies of one token that one rank can receive: top-k experts are distinct."""
        return min(self.topk, self.experts_per_rank)

    @property
    def most_received(self) -> int:
        """Most rows that a rank can receive: a token counts once for each of the rank's experts that it chose."""
        return self.num_ranks * self.max_tokens_per_rank * self.max_experts_per_token

    def check_ranks(self, name: str, given: Sized) -> None:
        """Raises `ProblemError` unless `given` has an item for every rank."""
        if not isinstance(given, Sized):
            raise ProblemError(name, given, f"one for each of num_ranks = {self.num_ranks}")
        if len(given) != self.num_ranks:
            raise ProblemError(f"len({name})", len(given), f"num_ranks = {self.num_ranks}")

    def check_num_tokens(self, num_tokens: SupportsIndex, field: str = "num_tokens") -> int:
        """num_tokens as an int.  Raises `ProblemError` unless it is an integer with 0 <= num_tokens <= max_tokens_per_rank."""
        most = self.max_tokens_per_rank
        return integer_between(field, num_tokens, 0, most, f"between 0 and max_tokens_per_rank = {most}")

    def expected_tokens_per_expert(self, num_tokens: int) -> float:
        """Tokens an expert receives when every rank routes `num_tokens` tokens uniformly (article 3.2.1.1)."""
        return num_tokens * self.num_ranks * self.topk / self.num_experts
