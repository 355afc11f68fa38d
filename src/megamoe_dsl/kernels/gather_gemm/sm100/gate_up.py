"""Rows of B of gate and up as a tile has them: 8 of gate, the 8 of up that belong to them, and so on, wherever they lie in B.

Gate and up of a channel then lie in one thread of the epilogue.  One box of five dimensions brings a CTA's 64 channels: K, eight rows, gate
or up, eights of channels, experts; that gate and up lie apart, or alternate, is a matter of strides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from ....blocks.sm100.load import PairOperand
from ....blocks.sm100.operand_maps import weight_rows
from ....device.tma import load_box_5d
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....hardware.map_fields import MapFields
from ...gemm.sm100.load import weight_operand
from ...gemm.work_tile import GemmTile
from ..problem import INTERLEAVED, UP_FIRST, GatherGemmProblem
from .config import Sm100GatherConfig
from .context import PairGatherContext

RUN = 8  # rows of gate, then of up
PAIRS = BLOCK_N // (2 * RUN)  # of such runs, in a CTA's part of a tile


@dataclass(frozen=True)
class GateUpOperand(PairOperand):
    """`row` counts runs of gate of the expert."""

    expert: Int32

    def load_rows(self, destination: Any, full: Any, x: Any) -> None:
        """All runs."""
        load_box_5d(destination, self.rows, full, (x, 0, 0, self.row, self.expert))


def gate_up_operand(ctx: PairGatherContext, tile: GemmTile) -> GateUpOperand:
    """A CTA's part of a tile."""
    whole = weight_operand(ctx, tile)
    first = (tile.n_block * CLUSTER + ctx.cta_rank) * PAIRS
    return GateUpOperand(whole.rows, whole.scales, first, whole.scale_row, whole.scale_k, whole.k_block, whole.num_bytes, tile.group)


def gate_up_rows(config: Sm100GatherConfig, address: Any) -> MapFields:
    """The tensor map of B."""
    problem = config.problem
    flat = weight_rows(address, problem.k, problem.n, config.k_block)
    (row,) = flat.strides
    dims = (flat.dims[0], RUN, 2, problem.n // (2 * RUN), problem.num_groups)
    if problem.gate_up == INTERLEAVED:
        strides = (2 * row, row, 2 * RUN * row, problem.n * row)
    else:
        strides = (row, problem.n // 2 * row, RUN * row, problem.n * row)
    return flat._replace(dims=dims, strides=strides, box=(flat.box[0], RUN, 2, PAIRS, 1))


def first_gate(problem: GatherGemmProblem) -> int:
    """Where a thread's gates are among four of its sums: two of the first run's row, two of the second's."""
    return 2 if problem.gate_up == UP_FIRST else 0
