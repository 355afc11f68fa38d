"""The tensor maps of the SM100 GEMM kernel: said once, for the driver, the simulator and the launching function."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ....hardware.cta_pair import BLOCK_N
from ....hardware.map_fields import MapFields
from ....hardware.scale_factors import SF_ATOM_ROWS
from ....layouts.arith import align
from ...sm100.operand_maps import byte_rows, scale_words, weight_rows
from .config import Sm100GemmConfig


class PairGemmMap(IntEnum):
    """Position among the kernel's parameters."""

    TOKENS = 0
    SFA = 1
    WEIGHTS = 2
    SFB = 3


def pair_map_fields(config: Sm100GemmConfig, args: Any) -> list[MapFields]:
    """Of every map, in order; `args` has the fields of `GemmArguments`."""
    problem, k_block, atoms = config.problem, config.k_block, config.stage.sfa_atoms
    row_bytes = problem.formats.activations.row_bytes(problem.k)
    tokens = byte_rows(args.a, row_bytes, args.m, config.block_m // 2, k_block.row_bytes)
    weights = weight_rows(args.b, problem.k, problem.num_groups * problem.n, k_block)
    if not problem.formats.scaled:
        return [tokens, tokens, weights, weights]  # the second of each is not used
    words = problem.num_groups * problem.k_words
    return [
        tokens,
        scale_words(args.a_sf, args.a_sf_ld, problem.k_words, atoms * SF_ATOM_ROWS, k_block),
        weights,
        scale_words(args.b_sf, align(problem.n, SF_ATOM_ROWS), words, BLOCK_N, k_block),
    ]
