"""Run-time arguments of a launch; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutlass import Int32, Int64

OPTIONAL: Any = None
"""Of an argument that some launches do not take: the family says which do (`Kernel.arguments_type`)."""


@dataclass(frozen=True)
class GemmArguments:
    """What the launching function takes; it makes the tensor maps, which the kernel gets by value.

    Over the rows of experts `m` are the rows of all together, of `a` `a_rows` and of `d` `d_rows`.  Where rows are gathered `a_sf` is f32
    [a_rows, a_sf_ld], of which the first k / 128 columns count.  Of gate and up `d` is e4m3 or bf16 [d_rows, n / 2], of their gradients
    bf16 [d_rows, 2 n].  Where K are the rows of groups `a` has rows that are gathered, `b` the others; or they are e4m3 [n, m] and [k, m],
    with scales f32 [m / 128, n] and [m / 128, k].
    """

    a: Int64  # e4m3 or bf16 [m, k]; of E2M1 two in a byte [m, k / 2]
    # f32 [k / 128, a_sf_ld], of which the first m columns count; of UE8M0 words in UTCCP order (hardware/operand_tile.py); 0 of a
    # number format without scales, as b_sf and a_sf_ld
    a_sf: Int64
    b: Int64  # e4m3 or bf16 [num_groups, n, k], or E2M1 [num_groups, n, k / 2]
    b_sf: Int64  # f32 [num_groups, ceil(n / 128), k / 128]; of UE8M0 words in UTCCP order [num_groups, k / 128, n rounded up to 128]
    d: Int64  # bf16 or f32 [m, n]
    # where rows belong (i32): contiguous [m / 128], the group or -1; packed [num_groups], where each group's rows end; masked
    # [num_groups], rows of each group; 0 for a dense problem
    groups: Int64
    counter: Int64  # u32, 0 before the first launch and after each, where tiles are scheduled at run time; no two launches at once; else 0
    m: Int32  # rows
    a_sf_ld: Int32  # a multiple of 4, of UE8M0 of 128, at least m

    # over the rows of experts
    d_sf: Int64 = OPTIONAL  # f32 [n / 256, d_sf_ld] of gate and up, of which the first d_rows columns count; else 0, and of bf16
    sources: Int64 = OPTIONAL  # i32 [m], the row of A of each row, where they are gathered; else 0
    d_sf_ld: Int32 = OPTIONAL
    a_rows: Int32 = OPTIONAL
    d_rows: Int32 = OPTIONAL
    # in number formats with a factor of a whole matrix: f32 [num_groups], what the sums of each group's rows are multiplied with
    factors: Int64 = OPTIONAL
    # where activated gate and up are quantized with one: f32 [num_groups] each; `factors` are then of gate alone
    up_factors: Int64 = OPTIONAL  # what sums of up are multiplied with
    hidden_factors: Int64 = OPTIONAL  # the factor of each expert's rows of d
    bias: Int64 = OPTIONAL  # f32 or bf16 [num_groups, n], as the problem's `biases` says, in the order of the rows of B; added to sums
    preactivations: Int64 = OPTIONAL  # bf16 [d_rows, n]: gate and up, before they are activated
    # where sums are gradients of activated gate and up
    gate_up: Int64 = OPTIONAL  # bf16 [d_rows, 2 n], as stored
    row_weights: Int64 = OPTIONAL  # f32 [m], the top-k weight of each row
    weighted: Int64 = OPTIONAL  # bf16 [d_rows, n], the activated product times it
    dots: Int64 = OPTIONAL  # f32 [ceil(n / 128), m], each row's products of sums and activated product over 128 columns
    trace: Int64 = OPTIONAL  # memory for the stamps of a traced kernel (layouts/records.py)
