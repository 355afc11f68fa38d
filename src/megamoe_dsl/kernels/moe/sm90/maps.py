"""The tensor maps of the SM90 kernel: twelve descriptors, Linear2 at a fixed distance from Linear1.

An operand has two maps: one whose box is the whole operand of a stage, and one whose box is a part of it.  A part is what a CTA fetches for
all CTAs of its cluster, or the tokens of a half tile.  Where CTAs decode a half of packed weights each, the boxes have the codes of a
half, and the records of the whole tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import partial

from ....hardware.operand_tile import BLOCK_K
from ....hardware.packed_tile import GROUP, WHOLE_TILE
from ....hardware.tensor_map import TensorMap, TensorMapDtype
from ....layouts.arith import ceil_div
from ..layouts.symmetric import symmetric_buffer
from .config import Sm90Config


class Sm90Map(IntEnum):
    """Position of a map in the table; maps of Linear2 are `Sm90Config.maps_per_linear` further."""

    TOKENS = 0
    SFA = 1
    WEIGHTS = 2
    TOKENS_PART = 3
    WEIGHTS_PART = 4
    FC1_OUTPUT = 10
    FC1_OUTPUT_PART = 11


NUM_MAPS = 12


def tensor_maps(config: Sm90Config, sym: int, weights: Mapping[str, int]) -> list[TensorMap]:
    """Descriptors in table order.  Beyond the last channel of tokens and of Linear1's outputs TMA loads zeros and stores nothing.

    sym      address of this rank's symmetric buffer
    weights  addresses by name; fc1, fc2: tiles of 256 rows by 128 of K, one after another (quant.tile_sm90, hardware/packed_tile.py)
    """
    problem = config.problem
    region = symmetric_buffer(problem, config.arch)
    experts, hidden, intermediate = problem.experts_per_rank, problem.hidden, problem.intermediate
    pool = region["fc1_topk_weights"].field.shape[0]

    def rows(address: int, width: int, height: int, box_height: int, swizzle: int = 128) -> TensorMap:
        return TensorMap(address, TensorMapDtype.U8, (width, height), (width,), (BLOCK_K, box_height), swizzle)

    def phase(acts: str, sf: str, k: int, tiles: int, address: int) -> list[TensorMap]:
        words, sf_rows = region[sf].field.shape
        tokens = partial(rows, region.address(sym, acts), k, pool)
        lines = config.weight_lines
        whole, part = (GROUP.code_lines, WHOLE_TILE.record_lines) if config.halves_decoding else (lines, lines // config.cluster)
        weights = partial(rows, address, BLOCK_K, experts * tiles * lines * ceil_div(k, BLOCK_K), swizzle=0 if config.packed else 128)
        return [
            tokens(config.block_m),
            TensorMap(region.address(sym, sf), TensorMapDtype.U32, (sf_rows, words), (4 * sf_rows,), (config.block_m, 1), 0),
            weights(whole),
            tokens(config.part_tokens),
            weights(part),
        ]

    fc1_output = partial(rows, region.address(sym, "fc2_acts"), intermediate, pool)
    return [
        *phase("fc1_acts", "fc1_sf", hidden, config.fc1_n_blocks, weights["fc1"]),
        *phase("fc2_acts", "fc2_sf", intermediate, config.fc2_n_blocks, weights["fc2"]),
        fc1_output(config.block_m),
        fc1_output(config.part_tokens),
    ]
