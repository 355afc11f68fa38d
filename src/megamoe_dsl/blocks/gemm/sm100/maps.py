"""The tensor maps of SM100's GEMMs: said once, for the driver, the simulator and the launching function."""

from __future__ import annotations

from typing import Any

from ....hardware.map_fields import MapFields
from ....hardware.scale_factors import SF_ATOM_ROWS
from ....hardware.tensor_map import TensorMapDtype
from ....layouts.arith import align
from ...sm100.epilogue_tile import FC1_CHANNELS
from ...sm100.operand_maps import byte_rows, scale_words, weight_rows
from ...sm100.result_tile import HALF_BYTES, HALF_CHANNELS
from ..gather.sm100.gate_up import gate_up_rows
from ..maps import rows_of_a


def pair_map_fields(config: Any, args: Any) -> list[MapFields]:
    """Fields of every map, in the order of `config.map_names`; `args` has those of the kernel's arguments.

    Rows that are gathered or scattered are boxes of one row; without scales their maps are there, and not used."""
    problem, k_block, stage = config.problem, config.k_block, config.stage
    words, scaled = problem.num_groups * problem.k_words, problem.formats.scaled
    width = problem.formats.activations.row_bytes(problem.k)
    box = 1 if problem.gathers else config.block_m // config.cluster
    tokens = byte_rows(args.a, width, rows_of_a(problem, args), box, k_block.row_bytes)
    if problem.gate_up:
        weights = gate_up_rows(config, args.b)
    else:
        weights = weight_rows(args.b, problem.k, problem.num_groups * problem.n, k_block, stage.weight_rows)
    b_scales = scale_words(args.b_sf, align(problem.n, SF_ATOM_ROWS), words, stage.weight_rows, k_block)
    common = [weights, b_scales if scaled else weights]
    if problem.of_experts:
        return [tokens, *common, result_rows(config, args)]
    a_scales = scale_words(args.a_sf, args.a_sf_ld, problem.k_words, stage.sfa_atoms * SF_ATOM_ROWS, k_block)
    return [tokens, a_scales if scaled else tokens, *common]


def result_rows(config: Any, args: Any) -> MapFields:
    """D: a row's 64 channels that a CTA has of gate and up, or a half of its 128 in BF16."""
    problem = config.problem
    if problem.gate_up and problem.hidden.scale:
        hidden = problem.hidden
        return byte_rows(args.d, hidden.row_bytes(problem.d_columns), args.d_rows, 1, hidden.row_bytes(FC1_CHANNELS))
    pitch = problem.d_columns * problem.output_bytes
    return MapFields(args.d, TensorMapDtype.BF16, (problem.d_columns, args.d_rows), (pitch,), (HALF_CHANNELS, 1), HALF_BYTES)
