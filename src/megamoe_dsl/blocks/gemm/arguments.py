"""Run-time arguments of a launch; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class GemmArguments:
    """What the launching function takes; it makes the tensor maps, which the kernel gets by value.

    a         e4m3 or bf16 [m, k]; of E2M1 two in a byte [m, k / 2]
    a_sf      f32 [k / 128, a_sf_ld], of which the first m columns count; of UE8M0 words in UTCCP order (hardware/operand_tile.py);
              0 of a number format without scales, as b_sf and a_sf_ld
    b         e4m3 or bf16 [num_groups, n, k], or E2M1 [num_groups, n, k / 2]
    b_sf      f32 [num_groups, ceil(n / 128), k / 128]; of UE8M0 words in UTCCP order [num_groups, k / 128, n rounded up to 128]
    d         bf16 or f32 [m, n]
    groups    where rows belong (i32): contiguous [m / 128], the group or -1; packed [num_groups], where each group's rows end; masked
              [num_groups], rows of each group; 0 for a dense problem
    counter   u32, 0 before the first launch and after each, where tiles are scheduled at run time; no two launches at once; else 0
    m         rows
    a_sf_ld   a multiple of 4, of UE8M0 of 128, at least m
    """

    a: Int64
    a_sf: Int64
    b: Int64
    b_sf: Int64
    d: Int64
    groups: Int64
    counter: Int64
    m: Int32
    a_sf_ld: Int32


@dataclass(frozen=True)
class BiasedGemmArguments(GemmArguments):
    """Of a problem with biases.

    bias      f32 or bf16 [num_groups, n], as `biases` says, added to sums
    """

    bias: Int64


@dataclass(frozen=True)
class FactoredGemmArguments(GemmArguments):
    """Of number formats with a factor of a whole matrix.

    factors   f32 [num_groups], what the sums of each group's rows are multiplied with
    """

    factors: Int64
