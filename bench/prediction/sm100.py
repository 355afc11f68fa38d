"""The SM100 kernels in the model: a worker is a pair of CTAs, with two accumulators and warpgroups that finish tiles meanwhile.

What a role's loop takes is instructions of its compiled code, a clock or more each; `Instructions` of our kernel are the golden figures
(tests/golden), those of DeepGEMM's are from its compiled code (docs/lab/compiled.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from megamoe_dsl.hardware.cta_pair import BLOCK_N
from megamoe_dsl.hardware.operand_tile import BYTE_VALUES, SF_ATOM_BYTES, SF_ATOM_ROWS, KBlock
from megamoe_dsl.kernels.moe.layouts.smem_plan import TILE_ROWS
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.layouts.arith import ceil_div
from megamoe_dsl.problem import Problem

from .calibration import Calibration
from .launch import KBlocks, RankLoad, Tiles, weights_kept
from .machine import Machine, TileTable

MMA_TOKENS = 16
LEAST_CLOCKS = 32  # of an MMA of all rows, beside an eighth of a clock per token
LEAST_ENERGY = 0.25
EPILOGUE_TOKENS = 8
FC1_VALUES = 128  # of a token's intermediate that a tile stores
BYTE_MMA = 32  # channels of an MMA of values that take a byte each; one of packed values has twice, of BF16 half as many, and takes as long
BYTE_MMAS = 4  # of 128 channels, whose energy is a calibration's
WINDOW = 0.25
SPREAD_SEED = 7


@dataclass(frozen=True)
class Instructions:
    """Warp instructions of an epilogue's 8 tokens, of the rest of its tile, and of a K block of MMA warp and slower loader."""

    fc1: float
    fc2: float
    tile: float
    mma: float
    load: float


@dataclass(frozen=True)
class Shape:
    """A fused SM100 kernel, ours or another project's; fields as in `Sm100Config`."""

    problem: Problem
    num_sms: int
    block_m: int
    store_block_m: int
    epilogue_warpgroups: int
    num_stages: int
    instructions: Instructions
    shares_tile: bool  # whether two epilogue warpgroups share each tile, rather than taking alternate ones
    handed_out: bool  # dynamic rather than static schedule
    k_block: KBlock = BYTE_VALUES  # of a stage
    tiles_weights: bool = False  # a CTA's weights of a stage are contiguous in memory

    @property
    def block_k(self) -> int:
        return self.k_block.channels

    @property
    def groups(self) -> int:
        return 1 if self.shares_tile else self.epilogue_warpgroups


OURS: Mapping[int, Instructions] = {
    16: Instructions(104.5, 20, 83, 55, 25),
    32: Instructions(90.5, 16, 83, 55, 25),
    64: Instructions(90.5, 16.5, 98, 55, 25),
    96: Instructions(90.5, 16, 83, 48, 25),
    128: Instructions(90.5, 16, 83, 54, 25),
    192: Instructions(90.5, 16, 83, 52, 25),
}
"""By `block_m`, with E4M3 tokens."""
PACKED: Mapping[int, Instructions] = {
    32: Instructions(98, 15, 83, 63, 26),
    64: Instructions(98, 15, 98, 63, 26),
    96: Instructions(94, 16, 83, 38, 25),
    128: Instructions(94, 16, 83, 38, 25),
    192: Instructions(95, 16, 83, 61, 26),
}
"""By `block_m`, with packed tokens and the BLOCK_K that is chosen there."""
PLAIN: Mapping[int, Instructions] = {
    16: Instructions(66, 20, 75, 45, 21),
    32: Instructions(55, 16, 75, 45, 21),
    64: Instructions(55, 16.5, 90, 46, 21),
    96: Instructions(55, 16, 75, 40, 21),
    128: Instructions(55, 16, 75, 45, 21),
    192: Instructions(55, 16, 75, 40, 21),
}
"""By `block_m`, with BF16."""
PACKED_MMA = {128: 38.0, 256: 62.0}  # Instructions of the MMA warp for a K block of packed values, by its channels.


def shape_of(config: Sm100Config) -> Shape:
    """The shape of our kernel with this configuration."""
    formats, block_m = config.problem.formats, config.block_m
    instructions = (OURS if formats.scaled else PLAIN)[block_m]
    if formats.packs_activations:
        instructions = replace(PACKED[block_m], mma=PACKED_MMA[config.block_k])
    tile = (config.problem, config.num_sms, block_m, config.store_block_m, config.epilogue_warpgroups, config.num_stages)
    return Shape(*tile, instructions, shares_tile=False, handed_out=True, k_block=config.k_block, tiles_weights=True)


def tile_table(shape: Shape, tiles: Tiles, load: RankLoad, calibration: Calibration, clock: float) -> TileTable:
    """Costs of the tiles at a clock in GHz."""
    k_block, kernel, us, instructions = shape.k_block, calibration.kernel, 1e-3 / clock, shape.instructions
    k_blocks, formats = KBlocks.of(shape.problem, k_block.channels), shape.problem.formats
    valid = tiles.valid
    none = np.full_like(valid, -1)
    tokens = (valid + MMA_TOKENS - 1) // MMA_TOKENS * MMA_TOKENS
    mma = np.maximum(TILE_ROWS * tokens * BYTE_MMA / kernel["flop_per_clock"], LEAST_CLOCKS + tokens / 8)
    tensor = k_block.mmas * mma / kernel["efficiency"]
    passes = -(-valid // shape.store_block_m) * (shape.store_block_m // EPILOGUE_TOKENS)
    share = 0.5 if shape.shares_tile and shape.epilogue_warpgroups == 2 else 1.0
    issued = tiles.by_phase(instructions.fc1, instructions.fc2) * passes * share + instructions.tile
    sf_bytes = k_block.words * SF_ATOM_BYTES
    atoms_bytes = ceil_div(shape.block_m, SF_ATOM_ROWS) * sf_bytes
    weight_bytes = np.full(len(valid), float(TILE_ROWS * formats.weights.row_bytes(k_block.channels) + 2 * sf_bytes))
    row, stored = float(k_block.row_bytes), formats.hidden.row_bytes(FC1_VALUES)
    result = TILE_ROWS * formats.combine.bytes_per_value
    return TileTable(
        is_fc2=tiles.is_fc2,
        k_blocks=k_blocks.count(tiles),
        keys=np.stack([k_blocks.weights(tiles), none, k_blocks.tokens(tiles), none], 1),
        pools=np.stack([tiles.pool_block] * 2, 1),
        arrivals=np.ones_like(valid),
        l2_bytes=np.stack([weight_bytes, np.full(len(valid), shape.block_m * row + 2 * atoms_bytes)], 1),
        hbm_bytes=np.stack([weight_bytes, np.full(len(valid), shape.block_m * row + atoms_bytes)], 1),
        multiply=np.maximum(tensor, instructions.mma * kernel["warp_clocks"]) * us,
        epilogue=issued * kernel["epilogue_clocks"] * us + tiles.by_phase(kernel["fc1_epilogue"], kernel["fc2_epilogue"]),
        nvlink=tiles.by_phase(0.0, valid * result * load.remote),
        written=tiles.by_phase(valid * stored, valid * result),
        energy=np.maximum(tokens / SF_ATOM_ROWS, LEAST_ENERGY) * k_block.mmas / BYTE_MMAS,
    )


def machine(shape: Shape, load: RankLoad, calibration: Calibration, clock: float) -> Machine:
    """The GPU at a clock in GHz.  Between two contiguous runs of a stage's bytes HBM could serve `hbm_gap` bytes more."""
    pairs, weights = shape.num_sms // 2, shape.problem.formats.weights
    runs = np.array([weights.row_bytes(shape.k_block.channels) * (BLOCK_N if shape.tiles_weights else 1), shape.k_block.row_bytes])
    return Machine(
        calibration,
        clock,
        sms=2,
        stages=shape.num_stages,
        handed_out=shape.handed_out,
        places=2,
        overlaps=True,
        groups=shape.groups,
        slower=1 + calibration.kernel["hbm_gap"] / runs,
        spread=calibration.spread * np.random.default_rng(SPREAD_SEED).permutation(pairs) / max(1, pairs - 1),
        kept=weights_kept(shape.problem, load, weights.bytes_per_value, calibration),
        pulled_from=load.remote,
        issue=shape.instructions.load * calibration.kernel["warp_clocks"] * 1e-3 / clock,
        window=WINDOW,
    )
