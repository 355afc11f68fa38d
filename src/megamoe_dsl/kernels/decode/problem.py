"""A layer of a few tokens on one GPU.  Every constraint is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ...activation import SILU
from ...blocks.gemm.problem import GATE_FIRST, GATE_UP, GEMM_RECIPES, MOST_GROUPS, SCALE_BLOCK
from ...hardware.packed_tile import TILE_ROWS
from ...problem import CHANNEL_STEP, MAX_TOPK, ActivatingProblem, Problem, ProblemError
from ...recipe import BF16, E2M1

FC1, FC2 = range(2)  # the linears


@dataclass(frozen=True)
class DecodeProblem(ActivatingProblem):
    """y[t] = sum over a token's experts e of weight * W2[e] (activation(W1[e] x[t])).  Raises `ProblemError`.

    hidden, intermediate  channels of a token, and between the linears: multiples of 128, in bf16xbf16 of 32; in fp8xmxfp4 hidden of 256
    num_experts  at most 1024
    topk         experts of a token, at most 32
    gate_up      how rows of W1 are gate and up: gate_first, up_first, interleaved
    activation   of gate and up (activation.py)
    activation_clamp  as of a `Problem`; None is the activation's own
    recipe       number formats: fp8xfp8, fp8xmxfp4 or bf16xbf16
    fast_math, weigh_results  as of a `Problem`
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
    weigh_results: bool = True

    def __post_init__(self) -> None:
        self.require_up_to(hidden=1 << 20, intermediate=1 << 20, num_experts=MOST_GROUPS, topk=MAX_TOPK)
        self.require_one_of(GEMM_RECIPES, "recipe")
        step = SCALE_BLOCK if self.formats.scaled else CHANNEL_STEP
        for field in ("hidden", "intermediate"):
            own = TILE_ROWS if self.packed and field == "hidden" else step
            self.require(field, getattr(self, field) % own == 0, f"a multiple of {own} in {self.recipe}")
        self.require_one_of(GATE_UP[1:], "gate_up")
        self.check_activation()

    @classmethod
    def of(cls, problem: Problem) -> Self | None:
        """A layer of packed weights without biases, all of whose experts are on one GPU; None where the kernel does not take it."""
        names = "hidden", "intermediate", "num_experts", "topk", "activation", "activation_clamp", "recipe", "fast_math", "weigh_results"
        taken = problem.num_ranks == 1 and not problem.biases and problem.combine == BF16
        try:
            found = cls(**{name: getattr(problem, name) for name in names}) if taken else None
        except ProblemError:
            return None
        return found if found is not None and found.packed else None

    @property
    def packed(self) -> bool:
        return self.formats.promoted and self.formats.weights.element == E2M1

    def n(self, phase: int) -> int:
        return (2 * self.intermediate, self.hidden)[phase]

    def k(self, phase: int) -> int:
        return (self.hidden, self.intermediate)[phase]
