"""The tensor maps of the mega kernel: nine descriptors in one table, encoded once per buffer and set of weights.

The kernel gets the address of the table.  Linear2 maps follow their Linear1 counterparts at a fixed distance, so a role finds its map from
the phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from ....blocks.sm100.pair_stage import byte_rows, scale_words, weight_rows
from ....hardware.cta_pair import BLOCK_N
from ....hardware.operand_tile import CHANNELS_PER_WORD
from ....hardware.tensor_map import MapFields, TensorMap
from ..layouts.smem_plan import TILE_ROWS
from ..layouts.symmetric import symmetric_buffer
from .config import Sm100Config


class Sm100Map(IntEnum):
    """Position in the table; add 4 for Linear2."""

    TOKENS = 0
    SFA = 1
    WEIGHTS = 2
    SFB = 3
    FC1_OUTPUT = 8


NUM_MAPS = 9


def tensor_maps(config: Sm100Config, sym: int, weights: Mapping[str, int]) -> list[TensorMap]:
    """Descriptors in table order.  Beyond the last channel of tokens and of Linear1's outputs TMA loads zeros and stores nothing.

    sym      address of this rank's symmetric buffer
    weights  addresses by name:
    fc1, fc2       E2M1, two per byte: [El * 2I, H / 2] with gate and up rows interleaved by 8; [El * H, I / 2].  E4M3: H and I bytes a row.
                   H and I are those of whole tiles
    fc1_sf, fc2_sf UE8M0 words in UTCCP order: [El * H / 128, 2I]; [El * I / 128, H]
    """
    problem = config.problem
    region = symmetric_buffer(problem, config.arch)
    experts, hidden, intermediate = problem.experts_per_rank, problem.hidden, problem.intermediate
    pool = region["fc1_topk_weights"].field.shape[0]

    k_block, tokens = config.k_block, problem.formats.activations

    def phase(acts: str, sf: str, k: int, tiles: int, address: int, scales: int) -> list[MapFields]:
        sf_words, sf_rows = region[sf].field.shape
        n = tiles * TILE_ROWS
        return [
            byte_rows(region.address(sym, acts), tokens.row_bytes(k), pool, config.block_m // 2, k_block.row_bytes),
            scale_words(region.address(sym, sf), sf_rows, sf_words, config.sf_block_m, k_block),
            weight_rows(address, sf_words * CHANNELS_PER_WORD, experts * n, k_block),
            scale_words(scales, n, experts * sf_words, BLOCK_N, k_block),
        ]

    outputs = region.address(sym, "fc2_acts"), tokens.row_bytes(intermediate), pool, config.store_block_m, config.smem.fc1_row_bytes
    fields = [
        *phase("fc1_acts", "fc1_sf", hidden, config.fc1_n_blocks, weights["fc1"], weights["fc1_sf"]),
        *phase("fc2_acts", "fc2_sf", intermediate, config.fc2_n_blocks, weights["fc2"], weights["fc2_sf"]),
        byte_rows(*outputs),
    ]
    return [one.tensor_map for one in fields]
