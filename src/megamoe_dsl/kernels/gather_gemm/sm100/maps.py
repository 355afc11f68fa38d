"""The tensor maps of the SM100 kernel: said once, for the driver, the simulator and the launching function."""

from __future__ import annotations

from typing import Any

from ....blocks.sm100.operand_maps import byte_rows, scale_words, weight_rows
from ....hardware.cta_pair import BLOCK_N
from ....hardware.map_fields import MapFields
from ....hardware.scale_factors import SF_ATOM_ROWS
from ....layouts.arith import align
from .config import Sm100GatherConfig

MAPS = ("tokens", "weights", "sfb")
"""Of every map, in the order of the kernel's parameters."""


def pair_gather_map_fields(config: Sm100GatherConfig, args: Any) -> list[MapFields]:
    """The same; `args` has the fields of `GatherGemmArguments`.  Rows that are gathered come from boxes of one row."""
    problem, k_block = config.problem, config.k_block
    row_bytes = problem.formats.activations.row_bytes(problem.k)
    box_rows = 1 if problem.gathers else config.block_m // 2
    return [
        byte_rows(args.a, row_bytes, args.a_rows, box_rows, k_block.row_bytes),
        weight_rows(args.b, problem.k, problem.num_groups * problem.n, k_block),
        scale_words(args.b_sf, align(problem.n, SF_ATOM_ROWS), problem.num_groups * problem.k_blocks, BLOCK_N, k_block),
    ]
