"""The SM90 kernel in the model: a worker is a cluster, its math warps finish their tiles themselves.

With packed weights the math warps decode them, which takes longer than the wgmmas of few tokens; for tiles of many tokens other warps do,
and a K block takes what decoding it takes where that is longer.  A K block of BF16, of as many bytes, is taken to cost what one of FP8
does.
"""

from __future__ import annotations

import numpy as np

from megamoe_dsl.hardware.operand_tile import BLOCK_K
from megamoe_dsl.kernels.moe.layouts.smem_plan import TILE_ROWS
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm90.memory_plan import FC1_OUTPUTS

from .calibration import Calibration
from .launch import KBlocks, RankLoad, Tiles, weights_kept
from .machine import Floats, Ints, Machine, TileTable

ROWS = 128  # tokens that are the M of a wgmma
HALF = 64
SCALE_BYTES = 4  # of a token's K block
FC2_FIXED = 0.35  # share of a Linear2 epilogue of 128 tokens that fewer tokens take too
LEAST_ENERGY = 0.1
WINDOW = 0.8


def tile_table(config: Sm90Config, tiles: Tiles, load: RankLoad, calibration: Calibration, clock: float) -> TileTable:
    """Costs of the tiles at a clock in GHz.  With clusters of two a row is the pair's two tiles, which share weights or tokens."""
    k_blocks = KBlocks.of(config.problem, config.block_k)
    one, other = every(tiles, 0, config.cluster), every(tiles, config.cluster - 1, config.cluster)
    second = np.zeros_like(one.valid) if config.cluster == 1 else other.valid
    same_weights, same_tokens = one.n_block == other.n_block, one.pool_block == other.pool_block
    weights, tokens = (np.stack([number(one), number(other)], 1) for number in (k_blocks.weights, k_blocks.tokens))
    weights[same_weights, 1] = -1
    tokens[same_tokens, 1] = -1
    most, given = np.maximum(one.valid, second), one.valid + second
    multiply, energy = multiplication(config, one.valid, second, calibration, clock)
    rows = np.where((config.block_m == ROWS) & (most <= HALF), HALF, config.block_m).astype(float)  # that a K block fetches
    weight_bytes = np.full(len(most), float(config.fetched_weight_bytes))
    kernel, formats, scales = calibration.kernel, config.problem.formats, SCALE_BYTES if config.scaled else 0
    stored, result = formats.hidden.row_bytes(FC1_OUTPUTS), TILE_ROWS * formats.combine.bytes_per_value
    return TileTable(
        is_fc2=one.is_fc2,
        k_blocks=k_blocks.count(one),
        keys=np.concatenate([weights, tokens], 1),
        pools=np.stack([one.pool_block, other.pool_block], 1),
        arrivals=np.where(same_tokens, 2, 1) if config.cluster > 1 else np.ones_like(one.valid),
        l2_bytes=np.stack([weight_bytes, rows * (BLOCK_K + scales)], 1),
        hbm_bytes=np.stack([weight_bytes, rows * BLOCK_K], 1),
        multiply=multiply,
        epilogue=one.by_phase(kernel["fc1_epilogue"], kernel["fc2_epilogue"] * (FC2_FIXED + (1 - FC2_FIXED) * most / ROWS)),
        nvlink=one.by_phase(0.0, given * result * load.remote),
        written=one.by_phase(given * stored, given * result),
        energy=energy,
    )


def every(tiles: Tiles, first: int, step: int) -> Tiles:
    return Tiles(*(column[first::step] for column in (tiles.is_fc2, tiles.expert, tiles.n_block, tiles.pool_block, tiles.valid)))


def multiplication(config: Sm90Config, first: Ints, second: Ints, calibration: Calibration, clock: float) -> tuple[Floats, Floats]:
    """By tile, microseconds of a K block, and its energy relative to a K block of 128 x 256 x 128 in FP8, or x 64 in BF16."""
    kernel, us = calibration.kernel, 1e-3 / clock
    if config.block_m < ROWS:  # tokens are the wgmma's columns: the tensor core takes as long for a column as for a row
        token = kernel["packed_token"] if config.packed else kernel["rows_token"] + kernel["columns_token"]
        columns = kernel["packed_columns" if config.packed else "columns"] + token * config.block_m
        return np.full_like(first, columns * us, float), np.full_like(first, LEAST_ENERGY + config.block_m / ROWS, float)
    half = np.maximum(first, second) <= HALF
    clocks = kernel["rows"] + kernel["rows_token"] * np.where(half, HALF, ROWS)
    if config.decoded:
        clocks = np.maximum(clocks, kernel["decode"])
    energy = np.where(first <= HALF, 0.5, 1.0) + np.where(second > HALF, 1.0, np.where(second > 0, 0.5, 0.0))
    return clocks * us, energy


def machine(config: Sm90Config, load: RankLoad, calibration: Calibration, clock: float) -> Machine:
    """The GPU at a clock in GHz."""
    return Machine(
        calibration,
        clock,
        sms=config.cluster,
        stages=config.num_stages,
        handed_out=True,
        places=1,
        overlaps=False,
        groups=1,
        slower=np.ones(2),  # weight tiles are contiguous
        spread=np.zeros(config.num_clusters),
        kept=weights_kept(config.problem, load, config.fetched_weight_bytes / (TILE_ROWS * config.block_k), calibration),
        pulled_from=load.remote,
        issue=0.02,
        window=WINDOW,
    )
