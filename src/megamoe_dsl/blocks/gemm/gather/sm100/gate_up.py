"""Rows of B of gate and up as a tile has them: 8 of gate, the 8 of up that belong to them, and so on, wherever they lie in B.

Gate and up of a channel then lie in one thread of the epilogue.  One box of five dimensions brings a CTA's channels, 64 for each consumer:
K, eight rows, gate or up, eights of channels, experts; that gate and up lie apart, or alternate, is a matter of strides.
"""

from __future__ import annotations

from typing import Any

from .....hardware.map_fields import MapFields
from ....sm100.operand_maps import weight_rows
from ..problem import INTERLEAVED, UP_FIRST, GatherGemmProblem

RUN = 8  # rows of gate, then of up


def runs_of_cta(config: Any) -> int:
    """A CTA's part of a tile has so many runs of `RUN` rows of gate, and as many of up."""
    return config.stage.weight_rows // (2 * RUN)


def gate_up_rows(config: Any, address: Any) -> MapFields:
    """The tensor map of B."""
    problem = config.problem
    flat = weight_rows(address, problem.k, problem.n, config.k_block)
    (row,) = flat.strides
    dims = (flat.dims[0], RUN, 2, problem.n // (2 * RUN), problem.num_groups)
    if problem.gate_up == INTERLEAVED:
        strides = (2 * row, row, 2 * RUN * row, problem.n * row)
    else:
        strides = (row, problem.n // 2 * row, RUN * row, problem.n * row)
    return flat._replace(dims=dims, strides=strides, box=(flat.box[0], RUN, 2, runs_of_cta(config), 1))


def first_gate(problem: GatherGemmProblem) -> int:
    """Where a thread's gates are among four of its sums: two of the first run's row, two of the second's."""
    return 2 if problem.gate_up == UP_FIRST else 0
