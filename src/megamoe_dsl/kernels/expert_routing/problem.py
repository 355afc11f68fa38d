"""Tokens on one GPU and their experts.  Every constraint is checked here."""

from __future__ import annotations

from dataclasses import dataclass

from ...blocks.gemm.problem import GEMM_RECIPES, MOST_GROUPS, SCALE_BLOCK
from ...problem import CHANNEL_STEP, MAX_TOPK, ProblemError, integer_between
from ...recipe import RECIPES, Recipe

SOFTMAX, SIGMOID, SQRT_SOFTPLUS = "softmax", "sigmoid", "sqrtsoftplus"
SCORES = (SOFTMAX, SIGMOID, SQRT_SOFTPLUS)
F32, BF16 = "f32", "bf16"
LOGITS = (F32, BF16)
EXPERTS_PER_LANE_STEP = 32
MOST_REPLICAS = 64

MOST_SLOTS = 1 << 27
"""Of all tokens together: rows are counted in 32 bits, with room."""


@dataclass(frozen=True)
class RoutingProblem:
    """How a layer's tokens are sorted by expert and quantized.  Raises `ProblemError`.

    hidden  channels of a token, a multiple of 128, in bf16xbf16 of 32
    num_experts, topk  experts, at most 1024, and experts of a token, at most 32
    recipe  number formats of activations that tokens become (recipe.py)
    """

    hidden: int
    num_experts: int
    topk: int
    recipe: str = GEMM_RECIPES[0]

    def __post_init__(self) -> None:
        limits = {"hidden": 1 << 20, "num_experts": MOST_GROUPS, "topk": MAX_TOPK}
        for field, most in limits.items():
            object.__setattr__(self, field, integer_between(field, getattr(self, field), 1, most, f"between 1 and {most}"))
        if self.topk > self.num_experts:
            raise ProblemError("topk", self.topk, f"at most num_experts = {self.num_experts}")
        if self.recipe not in GEMM_RECIPES:
            raise ProblemError("recipe", self.recipe, "one of " + ", ".join(GEMM_RECIPES))
        step = SCALE_BLOCK if self.formats.scaled else CHANNEL_STEP
        if self.hidden % step:
            raise ProblemError("hidden", self.hidden, f"a multiple of {step} in {self.recipe}")

    @property
    def formats(self) -> Recipe:
        return RECIPES[self.recipe]

    def check_tokens(self, tokens: object, field: str = "num_tokens") -> int:
        """As an int.  Raises `ProblemError` for a number that no launch takes."""
        most = MOST_SLOTS // self.topk
        return integer_between(field, tokens, 0, most, f"between 0 and {most}")


@dataclass(frozen=True)
class TopExpertsProblem:
    """Which experts have the highest scores, and what their results are weighted with.  Raises `ProblemError`.

    num_experts, topk  experts, at most 1024, and those that are chosen, at most 32
    scores      weights of the chosen experts: softmax over their logits; sigmoid or sqrtsoftplus of each logit, divided by their sum
    logits      f32 or bf16
    biased      each expert has a bias that is added to its score when experts are chosen, not to the weights
    groups      groups of experts; if more than 1, a group has a multiple of 32 experts
    topk_groups  groups that experts are chosen from: those with the highest sums of their two best scores
    scale       factor of all weights
    hashed      a table names the experts of each token id (DeepSeek-V4); logits give weights alone
    replicas    places of an expert at most, which a second table names; 0: experts keep their numbers
    """

    num_experts: int
    topk: int
    scores: str = SOFTMAX
    logits: str = F32
    biased: bool = False
    groups: int = 1
    topk_groups: int = 1
    scale: float = 1.0
    hashed: bool = False
    replicas: int = 0

    def __post_init__(self) -> None:
        most = {"num_experts": MOST_GROUPS, "topk": MAX_TOPK, "groups": MOST_GROUPS // EXPERTS_PER_LANE_STEP}
        for field, limit in most.items():
            object.__setattr__(self, field, integer_between(field, getattr(self, field), 1, limit, f"between 1 and {limit}"))
        allowed = f"between 1 and groups = {self.groups}"
        object.__setattr__(self, "topk_groups", integer_between("topk_groups", self.topk_groups, 1, self.groups, allowed))
        object.__setattr__(self, "scale", float(self.scale))
        integer_between("replicas", self.replicas, 0, MOST_REPLICAS, f"between 0 and {MOST_REPLICAS}")
        if self.scores not in SCORES:
            raise ProblemError("scores", self.scores, "one of " + ", ".join(SCORES))
        if self.logits not in LOGITS:
            raise ProblemError("logits", self.logits, "one of " + ", ".join(LOGITS))
        if self.biased and self.scores == SOFTMAX:
            raise ProblemError("biased", self.biased, f"False with scores = {SOFTMAX}")
        if self.hashed and (self.biased or self.groups > 1):
            raise ProblemError("hashed", self.hashed, "False with a bias or groups, by which experts would be chosen")
        if self.groups > 1 and self.num_experts % (EXPERTS_PER_LANE_STEP * self.groups):
            raise ProblemError("num_experts", self.num_experts, f"a multiple of {EXPERTS_PER_LANE_STEP} in each of groups = {self.groups}")
        room = self.num_experts // self.groups * self.topk_groups
        if self.topk > room:
            raise ProblemError("topk", self.topk, f"at most the {room} experts of {self.topk_groups} of {self.groups} groups")

    def check_tokens(self, tokens: object, field: str = "num_tokens") -> int:
        """As an int.  Raises `ProblemError` for a number that no launch takes."""
        most = MOST_SLOTS // self.topk
        return integer_between(field, tokens, 0, most, f"between 0 and {most}")
