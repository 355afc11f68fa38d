"""Memory of the SM100 kernel: a CTA's shared memory (article 3.2.1.4), and the table of nine tensor maps, Linear2's after Linear1's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....blocks.sm100.epilogue_tile import result_bytes
from ....blocks.sm100.pair_stage import byte_rows, k_tiles, scale_words, weight_tiles
from ....hardware.cta_pair import ACCUMULATORS, BLOCK_N, CLUSTER
from ....hardware.operand_tile import CHANNELS_PER_SCALE, CHANNELS_PER_WORD, OPERAND_ALIGNMENT
from ....hardware.tensor_map import MapFields
from ....layouts.arith import align
from ....layouts.region import U8, U32, Field, MBarrier
from ..layouts.smem_plan import TILE_ROWS, WARPS_PER_GROUP, Place, SmemPlan, layer_plan

FC1_STORE_STAGES = 2
WORK_TILES = 2


def smem_plan(config: Any, num_stages: int, keeps: tuple[str, ...] = ()) -> SmemPlan:
    """With a ring of so many stages.  A dispatch warp has one slot, of a whole row.

    cd, Linear1: two passes of the epilogue; Linear2: one BF16 tile.  sfb: of the weights; sfa: of the tokens.
    """
    problem, groups, stage = config.problem, config.epilogue_warpgroups, config.pair_stage
    staged = align(max(FC1_STORE_STAGES * config.fc1_tile_bytes, result_bytes(config.store_block_m)), OPERAND_ALIGNMENT)
    ring = (*stage.operands(num_stages), Field("cd", (groups, staged), U8, OPERAND_ALIGNMENT), *stage.scales(num_stages))
    exchanged = config.store_block_m if problem.formats.hidden.channels == CHANNELS_PER_SCALE else 0  # tokens
    amax = Field("amax", (groups, WARPS_PER_GROUP, exchanged), U32, 16)
    readers = 32 * (CLUSTER * (2 + WARPS_PER_GROUP) + 1)
    barriers = (
        MBarrier("full", num_stages, 4, "token and weight loaders of both CTAs", "operands and scales of both CTAs", "MMA warp", True),
        MBarrier("empty", num_stages, 1, "tcgen05.commit, multicast to the pair", "", "token and weight loaders"),
        MBarrier("acc_full", ACCUMULATORS, 1, "tcgen05.commit, multicast to the pair", "", "epilogue warps"),
        MBarrier("acc_empty", ACCUMULATORS, 8, "the four warps of the epilogue warpgroup of both CTAs", "", "MMA warp", True),
    )
    tmem_address = Field("tmem_address", (1,), U32)  # the column that the TMEM allocation starts at
    pull = 1, problem.formats.activations.row_bytes(problem.hidden)
    return layer_plan(config, ring, pull, amax, barriers, (WORK_TILES, readers), after_barriers=(tmem_address,), keeps=keeps)


LINEAR_MAPS = ("tokens", "sfa", "weights", "sfb")
TABLE_MAPS = (*LINEAR_MAPS, *LINEAR_MAPS, "fc1_output")


def linear_maps(config: Any, name: str, rows: Place, scales: Place, k: int, tiles: int, weights: Mapping[str, int]) -> list[MapFields]:
    """Of the weights:

    fc1, fc2       tiles of 128 rows (quant.tile_sm100): of [2I, H] with gate and up rows interleaved by 8, and of [H, I]
    fc1_sf, fc2_sf words of scales in UTCCP order: [El * H / 128, 2I]; [El * I / 128, H]; of NVFP4 twice as many, without scales none
    """
    experts, n, k_block = config.problem.experts_per_rank, tiles * TILE_ROWS, config.k_block
    tokens = byte_rows(*rows, config.block_m // 2, k_block.row_bytes)
    operand, sfb = weight_tiles(weights[name], experts * n // BLOCK_N * k_tiles(k, k_block), k_block), weights[f"{name}_sf"]
    if not k_block.words:
        return [tokens, tokens, operand, operand]
    address, sf_words, sf_rows = scales
    weight_words = config.problem.formats.weights.scale_words(align(k, min(k_block.channels, CHANNELS_PER_WORD)))
    token_scales = scale_words(address, sf_rows, sf_words, config.sf_block_m, k_block)
    return [tokens, token_scales, operand, scale_words(sfb, n, experts * weight_words, BLOCK_N, k_block)]


def output_maps(config: Any, rows: Place) -> list[MapFields]:
    return [byte_rows(*rows, config.store_block_m, config.fc1_row_bytes)]
