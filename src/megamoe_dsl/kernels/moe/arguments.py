"""Run-time arguments of launches on the symmetric buffer of a rank; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...blocks.gemm.arguments import OPTIONAL

if TYPE_CHECKING:
    from cutlass import Int32, Int64


OVER_RANKS = "peers", "rank", "watchdog", "watchdog_ns"
"""What every launch takes that talks to other ranks."""


@dataclass(frozen=True)
class Arguments:
    """A family's `arguments_type` names those that its launches take.  P = pool rows (layouts/symmetric.py), El = local experts.

    `acts` to `dots` are those of the expert-parallel halves, with formats of fp8xfp8; in bf16xbf16 operands are bf16, and nobody reads
    scales.  Rows are those of Linear1's result; what lies between the rows of two experts does not matter, and is not written.
    """

    sym: Int64  # this rank's symmetric buffer (layouts/symmetric.py)
    peers: Int64 = OPTIONAL  # u64[num_ranks]: the address of every rank's symmetric buffer, as this rank sees it
    maps: Int64 = OPTIONAL  # table of tensor maps (memory_plan.py)
    # the inputs stage: BF16 tokens, 16-byte aligned; or, with `x_sf`, e4m3 ones, 8-byte aligned, or packed e2m1, 4-byte aligned
    x: Int64 = OPTIONAL  # [num_tokens, hidden]
    topk_idx: Int64 = OPTIONAL  # i64 [num_tokens, topk]
    topk_weights: Int64 = OPTIONAL  # f32 [num_tokens, topk]
    acts: Int64 = OPTIONAL  # e4m3 [P, intermediate]
    acts_sf: Int64 = OPTIONAL  # f32 [intermediate / 128, P]
    weights: Int64 = OPTIONAL  # e4m3 [El, 2 intermediate, hidden] of Linear1, [El, hidden, intermediate] of Linear2
    weights_sf: Int64 = OPTIONAL  # f32 [El, 2 intermediate / 128, hidden / 128], or [El, hidden / 128, intermediate / 128]
    out: Int64 = OPTIONAL  # bf16 [P, 2 intermediate]: Linear1 of every row, or its gradient; activated bf16 [P, intermediate]
    preactivations: Int64 = OPTIONAL  # bf16 [P, 2 intermediate]: Linear1 of every row, where `out` is activated
    gate_up: Int64 = OPTIONAL  # the same, in a backward pass
    row_weights: Int64 = OPTIONAL  # f32 [P], the top-k weight of each row: of a forward pass, for its backward pass
    weighted: Int64 = OPTIONAL  # bf16 [P, intermediate], the activated rows times it
    dots: Int64 = OPTIONAL  # f32 [intermediate / 128, P], what each 128 columns of a row add to the gradient of its weight
    y: Int64 = OPTIONAL  # bf16 [num_tokens, hidden], the output
    stats: Int64 = OPTIONAL  # i32[experts_per_rank] to which received tokens are added, or 0
    num_tokens: Int32 = OPTIONAL  # tokens of this rank
    x_sf: Int64 = OPTIONAL  # scales of quantized tokens, K-major, 4-byte aligned
    first_shared: Int32 = OPTIONAL  # number of the rank's first shared expert; `topk_idx` and `topk_weights` are without their slots
    rank: Int32 = OPTIONAL  # this rank's index
    watchdog: Int64 = OPTIONAL  # record for a wait that exceeds its limit (layouts/records.py)
    watchdog_ns: Int64 = OPTIONAL  # the limit in nanoseconds
    trace: Int64 = OPTIONAL  # stamps of a traced kernel (layouts/records.py); or 0 for the fused layer and its stages
    # f32; a layer with biases takes them, too, where nobody reads them: weights' tiles or tensor maps bring the scales
    fc1_sf: Int64 = OPTIONAL  # [El, 2I / 128, H / 128] (gate blocks, then up blocks)
    fc2_sf: Int64 = OPTIONAL  # [El, H / 128, I / 128]
    fc1_bias: Int64 = OPTIONAL  # f32 [El, 2I] in the order of the weights' rows
    fc2_bias: Int64 = OPTIONAL  # f32 [El, H]
    factors: Int64 = OPTIONAL  # f32 [El, 5], `recipe.ExpertFactors` of each expert, in number formats with a factor of a whole matrix
    results: Int64 = OPTIONAL  # what Linear1 and Linear2 of an unfused layer leave for the stage after them (unfused/config.py)
