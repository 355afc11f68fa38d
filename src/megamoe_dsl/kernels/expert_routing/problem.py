"""Tokens on one GPU and their experts.  Every constraint is checked here."""

from __future__ import annotations

from dataclasses import dataclass

from ...blocks.gemm.problem import GEMM_RECIPES, MOST_GROUPS, SCALE_BLOCK, SUMMED_RECIPES
from ...problem import CHANNEL_STEP, MAX_TOPK, CheckedProblem, ProblemError, integer_between
from ...recipe import BF16, F32

SOFTMAX, SIGMOID, SQRT_SOFTPLUS = "softmax", "sigmoid", "sqrtsoftplus"
SCORES = (SOFTMAX, SIGMOID, SQRT_SOFTPLUS)
LOGITS = (F32, BF16)
EXPERTS_PER_LANE_STEP = 32
MOST_REPLICAS = 64
MOST_SLOTS = 1 << 27  # of all tokens together: rows are counted in 32 bits, with room


class TokensProblem(CheckedProblem):
    """Base of the problems of this family: the number of tokens of a launch is checked here."""

    topk: int
    recipe: str = ""  # number formats that rows become; empty: none

    def check_num_tokens(self, tokens: object, field: str = "num_tokens") -> int:
        """As an int.  Raises `ProblemError` for a number that no launch takes."""
        most = MOST_SLOTS // self.topk
        return integer_between(field, tokens, 0, most, f"between 0 and {most}")


@dataclass(frozen=True)
class RoutingProblem(TokensProblem):
    """Sort top-k slots by expert and quantize tokens.  Raises `ProblemError`."""

    hidden: int  # channels of a token: a multiple of 128, in bf16xbf16 of 32
    num_experts: int  # at most 1024
    topk: int  # experts of a token, at most 32
    recipe: str = GEMM_RECIPES[0]  # number formats that tokens are quantized to (recipe.py)

    def __post_init__(self) -> None:
        self.require_up_to(hidden=1 << 20, num_experts=MOST_GROUPS, topk=MAX_TOPK)
        self.require("topk", self.topk <= self.num_experts, f"at most num_experts = {self.num_experts}")
        self.require_one_of(GEMM_RECIPES, "recipe")
        self.require_multiple(SCALE_BLOCK if self.formats.scaled else CHANNEL_STEP, "hidden", where=f" in {self.recipe}")


@dataclass(frozen=True)
class SumProblem(TokensProblem):
    """Sum the rows of each token's experts, times top-k weights.  Raises `ProblemError`."""

    hidden: int  # channels of a row: a multiple of 32
    topk: int  # rows of a token, at most 32
    weights: str = F32  # type of the top-k weights that rows are multiplied with: f32 or bf16
    width: int = 0  # channels of a token of y, of which `y` begins with the first of `hidden`; a multiple of 32; 0: hidden

    def __post_init__(self) -> None:
        self.require_up_to(hidden=1 << 20, topk=MAX_TOPK)
        self.require_up_to(0, width=1 << 20)
        self.require_multiple(CHANNEL_STEP, "hidden")
        aligned = self.width % CHANNEL_STEP == 0 and (not self.width or self.width >= self.hidden)
        self.require("width", aligned, f"0, or a multiple of {CHANNEL_STEP} from hidden = {self.hidden} on")
        self.require_one_of(LOGITS, "weights")


@dataclass(frozen=True)
class QuantizeProblem(TokensProblem):
    """Quantize BF16 rows to E4M3 with scales along rows, along columns, or both.  Raises `ProblemError`."""

    topk = 1

    hidden: int  # channels of a row: a multiple of 128
    gathered: bool = False  # whether a list has the token of each row, or -1 for a row of zeros
    rows: bool = True  # whether codes along rows are wanted
    recipe: str = SUMMED_RECIPES[1]  # fp8xfp8: an FP32 scale for 128 values; mxfp8xmxfp8: UE8M0 for 32, as words in the order of UTCCP
    # rows of each of several matrices that follow one another, a multiple of 128, of which each is transposed; 0: of one
    matrix_rows: int = 0
    columns: bool = True  # whether codes along columns are wanted

    def __post_init__(self) -> None:
        self.require_up_to(hidden=1 << 20)
        self.require_up_to(0, matrix_rows=1 << 20)
        self.require_multiple(SCALE_BLOCK, "hidden", "matrix_rows")
        self.require_flags("gathered", "rows", "columns")
        self.require("columns", self.columns or self.rows, "True without rows")
        self.require("recipe", self.recipe in SUMMED_RECIPES[1:], " or ".join(SUMMED_RECIPES[1:]))
        self.require("matrix_rows", not (self.matrix_rows and self.formats.promoted), f"0 in {self.recipe}")

    def check_rows(self, rows: object, field: str = "num_rows") -> int:
        """As an int.  Raises `ProblemError` for a number that no launch takes."""
        number = self.check_num_tokens(rows, field)
        if number % SCALE_BLOCK:
            raise ProblemError(field, number, f"a multiple of {SCALE_BLOCK}")
        return number


@dataclass(frozen=True)
class QuantizeWeightsProblem(TokensProblem):
    """Quantize BF16 matrices to E4M3 with one scale for 128 x 128 values.  Raises `ProblemError`."""

    topk = 1
    recipe = SUMMED_RECIPES[1]

    n: int  # rows of a matrix: a multiple of 128
    k: int  # columns: a multiple of 128
    transposed: bool = False  # whether codes and scales are those of the transposed matrix

    def __post_init__(self) -> None:
        self.require_up_to(n=1 << 20, k=1 << 20)
        self.require_multiple(SCALE_BLOCK, "n", "k")
        self.require_flags("transposed")


@dataclass(frozen=True)
class TopExpertsProblem(TokensProblem):
    """Choose each token's top-k experts and their weights from a router's logits.  Raises `ProblemError`."""

    num_experts: int  # at most 1024
    topk: int  # experts to choose for a token, at most 32
    # weights of the chosen experts: softmax over their logits; sigmoid or sqrtsoftplus of each logit, divided by their sum
    scores: str = SOFTMAX
    logits: str = F32  # type of logits: f32 or bf16
    biased: bool = False  # each expert has a bias; the choice of experts adds it to scores, weights do without it
    groups: int = 1  # groups of experts; if more than 1, a group has a multiple of 32 experts
    topk_groups: int = 1  # experts are chosen from so many groups: those with the highest sums of their two best scores
    scale: float = 1.0  # factor that multiplies all weights
    hashed: bool = False  # a table has the experts of each token id (DeepSeek-V4); logits only give weights
    replicas: int = 0  # most places of one expert; a second table lists the places. 0: expert numbers stay as they are

    def __post_init__(self) -> None:
        self.require_up_to(num_experts=MOST_GROUPS, topk=MAX_TOPK, groups=MOST_GROUPS // EXPERTS_PER_LANE_STEP)
        allowed = f"between 1 and groups = {self.groups}"
        object.__setattr__(self, "topk_groups", integer_between("topk_groups", self.topk_groups, 1, self.groups, allowed))
        self.require("scale", isinstance(self.scale, float | int) and abs(self.scale) < float("inf"), "a finite number")
        object.__setattr__(self, "scale", float(self.scale))
        self.require_up_to(0, replicas=MOST_REPLICAS)
        self.require_one_of(SCORES, "scores")
        self.require_one_of(LOGITS, "logits")
        self.require("biased", not (self.biased and self.scores == SOFTMAX), f"False with scores = {SOFTMAX}")
        by_scores = self.biased or self.groups > 1
        self.require("hashed", not (self.hashed and by_scores), "False with a bias or groups, by which experts would be chosen")
        whole = self.groups == 1 or self.num_experts % (EXPERTS_PER_LANE_STEP * self.groups) == 0
        step = EXPERTS_PER_LANE_STEP
        self.require("groups", whole, f"1, or such that each has a multiple of {step} of num_experts = {self.num_experts}")
        room = self.num_experts // self.groups * self.topk_groups
        groups = f"the {room} experts of {self.topk_groups} of {self.groups} groups"
        self.require("topk", self.topk <= room, f"at most {groups if self.groups > 1 else f'num_experts = {self.num_experts}'}")
