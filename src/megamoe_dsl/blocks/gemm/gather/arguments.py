"""Run-time arguments of a launch; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ..arguments import GemmArguments

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class GatherGemmArguments(GemmArguments):
    """Those of a packed GEMM, whose `m` are the rows of all experts, and where rows lie.

    a        e4m3 or bf16 [a_rows, k]
    a_sf     where rows are gathered f32 [a_rows, a_sf_ld], of which the first k / 128 columns count; else [k / 128, a_sf_ld], of which the
             first a_rows do
    d        bf16 [d_rows, n]; of gate and up e4m3 or bf16 [d_rows, n / 2]
    d_sf     f32 [n / 256, d_sf_ld] of gate and up, of which the first d_rows columns count; else 0, and of bf16
    sources  i32 [m], the row of A of each row, where they are gathered; else 0
    """

    d_sf: Int64
    sources: Int64
    d_sf_ld: Int32
    a_rows: Int32
    d_rows: Int32


@dataclass(frozen=True)
class FactorArguments:
    """In number formats with a factor of a whole matrix.

    factors   f32 [num_groups], what the sums of each expert's rows are multiplied with
    """

    factors: Int64


@dataclass(frozen=True)
class HiddenFactorArguments:
    """Of a GEMM that quantizes activated gate and up with a factor; `factors` are then of gate alone.

    up_factors       f32 [num_groups], what sums of up are multiplied with
    hidden_factors   f32 [num_groups], of each expert's rows of d
    """

    up_factors: Int64
    hidden_factors: Int64


@dataclass(frozen=True)
class BiasArguments:
    """Of a problem with biases.

    bias      f32 or bf16 [num_groups, n], in the order of the rows of B
    """

    bias: Int64


@dataclass(frozen=True)
class StoringArguments:
    """Of a GEMM that stores gate and up, too.

    preactivations   bf16 [d_rows, n]
    """

    preactivations: Int64


@dataclass(frozen=True)
class TraceArguments:
    """Of a traced kernel.

    trace   memory for its stamps (layouts/records.py)
    """

    trace: Int64


@cache
def with_parts(*parts: type[Any]) -> type[GatherGemmArguments]:
    """`GatherGemmArguments` and behind them the fields of each of these classes."""
    if not parts:
        return GatherGemmArguments
    name = "".join(one.__name__.removesuffix("Arguments") for one in (*parts, GatherGemmArguments)) + "Arguments"
    return make_dataclass(name, (), bases=(*reversed(parts), GatherGemmArguments), frozen=True, namespace={"__module__": __name__})
