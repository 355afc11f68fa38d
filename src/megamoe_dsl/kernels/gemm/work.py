"""The least that a GEMM has to do: FLOP and HBM bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ...blocks.gemm.problem import GemmProblem
from ..work import Work, value_bytes


@dataclass(frozen=True)
class GemmLoad:
    """rows of all groups together, and how many groups have any"""

    rows: int
    touched: int = 1


def count_work(problem: GemmProblem, load: GemmLoad) -> Work:
    """A, D and B of the groups that have rows, each moved once; scales are left out but those of 32 values of B, as in the fused layer's
    count."""
    p = problem
    read = load.rows * p.formats.activations.row_bytes(p.k) + load.touched * p.n * p.k * value_bytes(p.formats.weights)
    written = load.rows * p.n * p.output_bytes * (2 if p.accumulate else 1)
    return Work(2.0 * load.rows * p.n * p.k, read + written, 0.0)
