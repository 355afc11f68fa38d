"""A layer of a few tokens on one GPU.  Every constraint is checked here."""

from __future__ import annotations

from dataclasses import dataclass

from ...activation import SILU
from ...blocks.gemm.problem import GATE_FIRST, GATE_UP, GEMM_RECIPES, INTERLEAVED, MOST_GROUPS, SCALE_BLOCK, UP_FIRST
from ...problem import CHANNEL_STEP, MAX_TOPK, ActivatingProblem

FC1, FC2 = range(2)
"""The linears."""


@dataclass(frozen=True)
class DecodeProblem(ActivatingProblem):
    """y[t] = sum over a token's experts e of weight * W2[e] (activation(W1[e] x[t])).  Raises `ProblemError`.

    hidden, intermediate  channels of a token, and between the linears: multiples of 128, in bf16xbf16 of 32
    num_experts  at most 1024
    topk         experts of a token, at most 32
    gate_up      how rows of W1 are gate and up: gate_first, up_first, interleaved
    activation   of gate and up (activation.py)
    activation_clamp  as of a `Problem`; None is the activation's own
    recipe       number formats: fp8xfp8 or bf16xbf16
    fast_math    as of a `Problem`
    """

    hidden: int
    intermediate: int
    num_experts: int
    topk: int
    gate_up: str = GATE_FIRST
    activation: str = SILU
    activation_clamp: float | None = None
    recipe: str = GEMM_RECIPES[0]
    fast_math: bool = True

    def __post_init__(self) -> None:
        self.require_up_to(hidden=1 << 20, intermediate=1 << 20, num_experts=MOST_GROUPS, topk=MAX_TOPK)
        self.require_one_of(GEMM_RECIPES, "recipe")
        step = SCALE_BLOCK if self.formats.scaled else CHANNEL_STEP
        for field in ("hidden", "intermediate"):
            self.require(field, getattr(self, field) % step == 0, f"a multiple of {step} in {self.recipe}")
        self.require_one_of(GATE_UP[1:], "gate_up")
        self.check_activation()

    @property
    def interleaved(self) -> bool:
        return self.gate_up == INTERLEAVED

    @property
    def up_first(self) -> bool:
        return self.gate_up == UP_FIRST

    def n(self, phase: int) -> int:
        """Rows of an expert's weights of a linear."""
        return (2 * self.intermediate, self.hidden)[phase]

    def k(self, phase: int) -> int:
        """Columns of a linear's weights."""
        return (self.hidden, self.intermediate)[phase]
