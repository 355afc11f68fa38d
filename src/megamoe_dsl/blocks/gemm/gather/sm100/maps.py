"""The tensor maps of the SM100 kernel: said once, for the driver, the simulator and the launching function."""

from __future__ import annotations

from typing import Any

from .....hardware.map_fields import MapFields
from .....hardware.scale_factors import SF_ATOM_ROWS
from .....hardware.tensor_map import TensorMapDtype
from .....layouts.arith import align
from ....sm100.epilogue_tile import FC1_CHANNELS
from ....sm100.operand_maps import byte_rows, scale_words, weight_rows
from ....sm100.result_tile import HALF_BYTES, HALF_CHANNELS
from .config import Sm100GatherConfig
from .gate_up import gate_up_rows

MAPS = ("tokens", "weights", "sfb", "d")
"""Of every map, in the order of the kernel's parameters."""


def pair_gather_map_fields(config: Sm100GatherConfig, args: Any) -> list[MapFields]:
    """The same; `args` has the fields of `GatherGemmArguments`.  Rows that are gathered or scattered are boxes of one row."""
    problem, k_block, stage = config.problem, config.k_block, config.stage
    row_bytes = problem.formats.activations.row_bytes(problem.k)
    box_rows = 1 if problem.gathers else config.block_m // config.cluster
    if problem.gate_up:
        weights = gate_up_rows(config, args.b)
    else:
        weights = weight_rows(args.b, problem.k, problem.num_groups * problem.n, k_block, stage.weight_rows)
    words = problem.num_groups * problem.k_words
    scales = scale_words(args.b_sf, align(problem.n, SF_ATOM_ROWS), words, stage.weight_rows, k_block)
    return [
        byte_rows(args.a, row_bytes, args.a_rows, box_rows, k_block.row_bytes),
        weights,
        scales if problem.formats.scaled else weights,  # not used without scales
        result_rows(config, args),
    ]


def result_rows(config: Sm100GatherConfig, args: Any) -> MapFields:
    """Of D: a row's 64 channels that a CTA has of gate and up, or a half of its 128 in BF16."""
    problem = config.problem
    if problem.gate_up:
        hidden = problem.hidden
        if not hidden.scale:
            pitch = hidden.row_bytes(problem.d_columns)
            return MapFields(args.d, TensorMapDtype.BF16, (problem.d_columns, args.d_rows), (pitch,), (HALF_CHANNELS, 1), HALF_BYTES)
        return byte_rows(args.d, hidden.row_bytes(problem.d_columns), args.d_rows, 1, hidden.row_bytes(FC1_CHANNELS))
    pitch = problem.n * problem.output_bytes
    return MapFields(args.d, TensorMapDtype.BF16, (problem.n, args.d_rows), (pitch,), (HALF_CHANNELS, 1), HALF_BYTES)
