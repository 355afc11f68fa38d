"""Run-time arguments of a launch on one rank; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...blocks.gemm.arguments import OPTIONAL

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class Arguments:
    """What every launch of the layer, or of a stage of it, takes."""

    sym: Int64  # this rank's symmetric buffer (layouts/symmetric.py)
    peers: Int64  # u64[num_ranks]: the address of every rank's symmetric buffer, as this rank sees it
    maps: Int64  # table of tensor maps (memory_plan.py)
    y: Int64  # bf16 [num_tokens, hidden], the output
    stats: Int64  # i32[experts_per_rank] to which received tokens are added, or 0
    num_tokens: Int32  # tokens of this rank
    rank: Int32  # this rank's index
    watchdog: Int64  # record for a wait that exceeds its limit (layouts/records.py)
    watchdog_ns: Int64  # the limit in nanoseconds
    trace: Int64  # stamps of a traced kernel (layouts/records.py), or 0

    # f32, of a layer with biases, too, where weight scales are in the weights' tiles or have tensor maps, and nobody reads them
    fc1_sf: Int64 = OPTIONAL  # [El, 2I / 128, H / 128] (gate blocks, then up blocks)
    fc2_sf: Int64 = OPTIONAL  # [El, H / 128, I / 128]
    fc1_bias: Int64 = OPTIONAL  # f32 [El, 2I] in the order of the weights' rows
    fc2_bias: Int64 = OPTIONAL  # f32 [El, H]
    factors: Int64 = OPTIONAL  # f32 [El, 5], `recipe.ExpertFactors` of each expert, in number formats with a factor of a whole matrix
    results: Int64 = OPTIONAL  # what Linear1 and Linear2 of an unfused layer leave for the stage after them (unfused/config.py)


@dataclass(frozen=True, kw_only=True)
class EpArguments:
    """What launches of the halves of a layer take, and of their routing tables; P = pool rows (layouts/symmetric.py), El = local experts.
    Formats are those of fp8xfp8; of bf16xbf16 operands are bf16, and nobody reads scales."""

    sym: Int64  # this rank's symmetric buffer (layouts/symmetric.py)
    peers: Int64  # u64[num_ranks]: the address of every rank's symmetric buffer, as this rank sees it
    acts: Int64 = OPTIONAL  # e4m3 [P, intermediate], by the rows of Linear1's result; what lies between experts does not matter
    acts_sf: Int64 = OPTIONAL  # f32 [intermediate / 128, P]
    weights: Int64 = OPTIONAL  # e4m3 [El, 2 intermediate, hidden] of Linear1, [El, hidden, intermediate] of Linear2
    weights_sf: Int64 = OPTIONAL  # f32 [El, 2 intermediate / 128, hidden / 128], or [El, hidden / 128, intermediate / 128]
    # bf16 [P, 2 intermediate]: Linear1 of every row, or its gradient; activated bf16 [P, intermediate]; what lies between experts is left
    # alone
    out: Int64 = OPTIONAL
    preactivations: Int64 = OPTIONAL  # bf16 [P, 2 intermediate]: Linear1 of every row, where `out` is activated
    gate_up: Int64 = OPTIONAL  # the same, in a backward pass
    row_weights: Int64 = OPTIONAL  # f32 [P], the top-k weight of each row: of a forward pass, for its backward pass
    weighted: Int64 = OPTIONAL  # bf16 [P, intermediate], the activated rows times it
    dots: Int64 = OPTIONAL  # f32 [intermediate / 128, P], what each 128 columns of a row add to the gradient of its weight
    y: Int64 = OPTIONAL  # bf16 [num_tokens, hidden]
    num_tokens: Int32 = OPTIONAL  # tokens of this rank, whose experts are in its symmetric buffer
    rank: Int32  # this rank's index
    watchdog: Int64  # record for a wait that exceeds its limit (layouts/records.py)
    watchdog_ns: Int64  # the limit in nanoseconds
    trace: Int64 = OPTIONAL  # stamps of a traced kernel (layouts/records.py)
