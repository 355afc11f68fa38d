"""The tensor maps of the mega kernel: nine descriptors in one table, encoded once per buffer and set of weights.

The kernel gets the address of the table.  Linear2 maps follow their Linear1 counterparts at a fixed distance, so a role finds its map from
the phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from ....hardware.scale_factors import CHANNELS_PER_WORD
from ....hardware.tensor_map import DESCRIPTOR_BYTES, TensorMap, TensorMapDtype
from ....recipe import E2M1, E4M3
from ..layouts.symmetric import symmetric_buffer
from .config import Sm100Config
from .tile import BLOCK_N

PHASE_STRIDE = 4 * DESCRIPTOR_BYTES  # from a map of Linear1 to that of Linear2


class Sm100Map(IntEnum):
    """Position in the table; add 4 for Linear2."""

    TOKENS = 0
    SFA = 1
    WEIGHTS = 2
    SFB = 3
    FC1_OUTPUT = 8


NUM_MAPS = 9


def tensor_maps(config: Sm100Config, sym: int, weights: Mapping[str, int]) -> list[TensorMap]:
    """Descriptors in table order.

    sym      address of this rank's symmetric buffer
    weights  addresses by name:
    fc1, fc2       E2M1, two per byte: [El * 2I, H / 2] with gate and up rows interleaved by 8; [El * H, I / 2]
    fc1_sf, fc2_sf UE8M0 words in UTCCP order: [El * H / 128, 2I]; [El * I / 128, H]
    """
    problem = config.problem
    region = symmetric_buffer(problem, config.arch)
    experts, hidden, intermediate = problem.experts_per_rank, problem.hidden, problem.intermediate
    pool = region["fc1_topk_weights"].field.shape[0]

    k_block, tokens = config.k_block, problem.formats.activations

    def rows(address: int, width: int, height: int, box_height: int, span: int = k_block.row_bytes) -> TensorMap:
        return TensorMap(address, TensorMapDtype.U8, (width, height), (width,), (span, box_height), span)

    def words(address: int, width: int, height: int, box_width: int) -> TensorMap:
        return TensorMap(address, TensorMapDtype.U32, (width, height), (4 * width,), (box_width, k_block.words), 0)

    def unpacked(address: int, k: int, height: int) -> TensorMap:
        return TensorMap(address, TensorMapDtype.FP4_UNPACKED, (k, height), (k // 2,), (k_block.channels, BLOCK_N), k_block.row_bytes)

    def packed(address: int, k: int, height: int) -> TensorMap:
        return rows(address, k // 2, height, BLOCK_N)

    nibbles = {E4M3: unpacked, E2M1: packed}[tokens.element]

    def phase(acts: str, sf: str, k: int, n: int, address: int, scales: int) -> list[TensorMap]:
        sf_words, sf_rows = region[sf].field.shape
        return [
            rows(region.address(sym, acts), tokens.row_bytes(k), pool, config.block_m // 2),
            words(region.address(sym, sf), sf_rows, sf_words, config.sf_block_m),
            nibbles(address, k, experts * n),
            words(scales, n, experts * k // CHANNELS_PER_WORD, BLOCK_N),
        ]

    return [
        *phase("fc1_acts", "fc1_sf", hidden, 2 * intermediate, weights["fc1"], weights["fc1_sf"]),
        *phase("fc2_acts", "fc2_sf", intermediate, hidden, weights["fc2"], weights["fc2_sf"]),
        rows(region.address(sym, "fc2_acts"), tokens.row_bytes(intermediate), pool, config.store_block_m, config.smem.fc1_row_bytes),
    ]
