"""The SM100 kernels in the model: a worker is a pair of CTAs, with two accumulators and warpgroups that finish tiles meanwhile.

What a role's loop takes is instructions of its compiled code, a clock or more each; `Instructions` of our kernel are the golden figures
(tests/golden), those of DeepGEMM's are from its compiled code (docs/compiled.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..hardware.operand_tile import BLOCK_K
from ..hardware.scale_factors import SF_ATOM_BYTES, SF_ATOM_ROWS
from ..kernels.mega_moe.layouts.tile import TILE_ROWS
from ..kernels.mega_moe.sm100.config import Sm100Config
from ..layouts.arith import ceil_div
from ..problem import Problem
from .calibration import Calibration
from .launch import KBlocks, RankLoad, result_bytes, weights_kept
from .machine import Machine
from .tile_table import TileTable
from .tiles import Tiles

MMA_TOKENS = 16
LEAST_CLOCKS = 128  # of a K block in the tensor core, beside half a clock per token
LEAST_ENERGY = 0.25
EPILOGUE_TOKENS = 8
FC1_STORED = 128  # bytes of a token's intermediate that a tile stores
WEIGHT_BYTES = TILE_ROWS * BLOCK_K // 2 + 2 * SF_ATOM_BYTES
WINDOW = 0.25
SPREAD_SEED = 7


@dataclass(frozen=True)
class Instructions:
    """Of 8 tokens of each epilogue, of a tile's epilogue beside them, of a K block of the MMA warp and of the slower loader."""

    fc1: float
    fc2: float
    tile: float
    mma: float
    load: float


@dataclass(frozen=True)
class Shape:
    """What a kernel of this kind is, whoever wrote it: as in `Sm100Config`.

    shares_tile   whether two epilogue warpgroups share each tile, rather than taking alternate ones
    handed_out    whether tiles are handed out at run time
    """

    problem: Problem
    num_sms: int
    block_m: int
    store_block_m: int
    epilogue_warpgroups: int
    num_stages: int
    instructions: Instructions
    shares_tile: bool
    handed_out: bool

    @property
    def groups(self) -> int:
        """Epilogue warpgroups that take alternate tiles."""
        return 1 if self.shares_tile else self.epilogue_warpgroups


OURS: Mapping[int, Instructions] = {
    16: Instructions(104.5, 20, 83, 55, 25),
    32: Instructions(90.5, 16, 83, 55, 25),
    64: Instructions(90.5, 16.5, 98, 55, 25),
    96: Instructions(90.5, 16, 83, 48, 25),
    128: Instructions(90.5, 16, 83, 54, 25),
    192: Instructions(90.5, 16, 83, 52, 25),
}
"""By `block_m`."""


def shape_of(config: Sm100Config) -> Shape:
    """Our kernel's."""
    return Shape(
        config.problem,
        config.num_sms,
        config.block_m,
        config.store_block_m,
        config.epilogue_warpgroups,
        config.num_stages,
        OURS[config.block_m],
        shares_tile=False,
        handed_out=True,
    )


def tile_table(shape: Shape, tiles: Tiles, load: RankLoad, calibration: Calibration, clock: float) -> TileTable:
    """Costs of the tiles at a clock in GHz."""
    k_blocks, kernel, us, instructions = KBlocks.of(shape.problem), calibration.kernel, 1e-3 / clock, shape.instructions
    valid = tiles.valid
    none = np.full_like(valid, -1)
    tokens = (valid + MMA_TOKENS - 1) // MMA_TOKENS * MMA_TOKENS
    tensor = np.maximum(TILE_ROWS * tokens * BLOCK_K / kernel["flop_per_clock"], LEAST_CLOCKS + tokens / 2) / kernel["efficiency"]
    passes = -(-valid // shape.store_block_m) * (shape.store_block_m // EPILOGUE_TOKENS)
    share = 0.5 if shape.shares_tile and shape.epilogue_warpgroups == 2 else 1.0
    instructions_of = tiles.by_phase(instructions.fc1, instructions.fc2) * passes * share + instructions.tile
    atoms = ceil_div(shape.block_m, SF_ATOM_ROWS)
    weight_bytes, result = np.full(len(valid), float(WEIGHT_BYTES)), TILE_ROWS * result_bytes(shape.problem)
    return TileTable(
        is_fc2=tiles.is_fc2,
        k_blocks=k_blocks.count(tiles),
        keys=np.stack([k_blocks.weights(tiles), none, k_blocks.tokens(tiles), none], 1),
        pools=np.stack([tiles.pool_block] * 2, 1),
        arrivals=np.ones_like(valid),
        l2_bytes=np.stack([weight_bytes, np.full(len(valid), float(shape.block_m * BLOCK_K + 2 * atoms * SF_ATOM_BYTES))], 1),
        hbm_bytes=np.stack([weight_bytes, valid * float(BLOCK_K) + atoms * SF_ATOM_BYTES], 1),
        multiply=np.maximum(tensor, instructions.mma * kernel["warp_clocks"]) * us,
        epilogue=instructions_of * kernel["epilogue_clocks"] * us + tiles.by_phase(kernel["fc1_epilogue"], kernel["fc2_epilogue"]),
        nvlink=tiles.by_phase(0.0, valid * result * load.remote),
        written=tiles.by_phase(valid * FC1_STORED, valid * result),
        energy=np.maximum(tokens / SF_ATOM_ROWS, LEAST_ENERGY),
    )


def machine(shape: Shape, load: RankLoad, calibration: Calibration, clock: float) -> Machine:
    """The GPU at a clock in GHz."""
    per_us, pairs = clock * 1e3, shape.num_sms // 2
    weight_bytes = shape.problem.formats.weights.bytes_per_value
    return Machine(
        stages=shape.num_stages,
        handed_out=shape.handed_out,
        overlaps=True,
        groups=shape.groups,
        hbm=calibration.hbm,
        l2=calibration.l2_per_clock * per_us,
        nvlink=calibration.nvlink,
        port=calibration.port_per_clock * per_us * 2,
        hbm_latency=calibration.hbm_latency,
        l2_latency=calibration.hbm_latency * calibration.l2_latency,
        spread=calibration.spread * np.random.default_rng(SPREAD_SEED).permutation(pairs) / max(1, pairs - 1),
        l2_kept=calibration.l2_kept,
        fill=calibration.l2_fill,
        kept=weights_kept(shape.problem, load, weight_bytes, calibration),
        pulled_from=load.remote,
        issue=shape.instructions.load * kernel_clocks(calibration) * 1e-3 / clock,
        release=0.05,
        flag=0.8,
        tile=calibration.tile,
        window=WINDOW,
    )


def kernel_clocks(calibration: Calibration) -> float:
    """Of an instruction of a warp that is alone on its scheduler."""
    return calibration.kernel["warp_clocks"]
