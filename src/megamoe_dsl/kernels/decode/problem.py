"""A layer of a few tokens on one GPU.  Every constraint is checked here.  Arguments of a launch; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...activation import SILU
from ...blocks.gemm.problem import GATE_FIRST, GATE_UP, GEMM_RECIPES, MOST_GROUPS, SCALE_BLOCK
from ...hardware.packed_tile import TILE_ROWS
from ...problem import CHANNEL_STEP, MAX_TOPK, ActivatingProblem

if TYPE_CHECKING:
    from cutlass import Int32, Int64

FC1, FC2 = range(2)  # the linears


@dataclass(frozen=True)
class DecodeProblem(ActivatingProblem):
    """y[t] = sum over a token's experts e of weight * W2[e] (activation(W1[e] x[t])).  Raises `ProblemError`."""

    hidden: int  # channels of a token: a multiple of 128, in bf16xbf16 of 32, in fp8xmxfp4 of 256
    intermediate: int  # channels between the linears: a multiple of 128, in bf16xbf16 of 32
    num_experts: int  # at most 1024
    topk: int  # experts of a token, at most 32
    gate_up: str = GATE_FIRST  # how rows of W1 are gate and up: gate_first, up_first, interleaved
    activation: str = SILU  # of gate and up (activation.py)
    activation_clamp: float | None = None  # as of a `Problem`; None is the activation's own
    recipe: str = GEMM_RECIPES[0]  # number formats: fp8xfp8, fp8xmxfp4 or bf16xbf16
    fast_math: bool = True  # as of a `Problem`
    weigh_results: bool = True  # as of a `Problem`

    def __post_init__(self) -> None:
        self.require_up_to(hidden=1 << 20, intermediate=1 << 20, num_experts=MOST_GROUPS, topk=MAX_TOPK)
        self.require_one_of(GEMM_RECIPES, "recipe")
        step = SCALE_BLOCK if self.formats.scaled else CHANNEL_STEP
        self.require_multiple(TILE_ROWS if self.formats.decodes else step, "hidden", where=f" in {self.recipe}")
        self.require_multiple(step, "intermediate", where=f" in {self.recipe}")
        self.require_one_of(GATE_UP[1:], "gate_up")
        self.check_activation()

    def n(self, phase: int) -> int:
        return (2 * self.intermediate, self.hidden)[phase]

    def k(self, phase: int) -> int:
        return (self.hidden, self.intermediate)[phase]


@dataclass(frozen=True)
class DecodeArguments:
    """Tokens, weights and what lies between the linears."""

    x: Int64  # bf16 [num_tokens, hidden], 16-byte aligned
    topk_idx: Int64  # i64, or i32, [num_tokens, topk]; what is no expert masks a slot
    topk_weights: Int64  # f32, or bf16, [num_tokens, topk]
    w1: Int64  # e4m3 or bf16 [num_experts, 2 intermediate, hidden]; e2m1 as `TransformedWeights`
    w1_sf: Int64  # f32 [num_experts, 2 intermediate / 128, hidden / 128] with e4m3, else 0
    w2: Int64  # [num_experts, hidden, intermediate], as w1
    w2_sf: Int64  # f32 [num_experts, hidden / 128, intermediate / 128], as w1_sf
    y: Int64  # bf16 [num_tokens, hidden], 16-byte aligned
    stats: Int64  # i32 [num_experts], to which each expert's rows are added, or 0
    memory: Int64  # what a launch leaves for the next one on it (`DecodeConfig.memory`); no two launches at once
    num_tokens: Int32
