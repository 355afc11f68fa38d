"""A launch on either architecture: its tiles in order, its operands, its token pool, and arrival times of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from megamoe_dsl.hardware.operand_tile import BLOCK_K
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.layouts.smem_plan import TILE_ROWS
from megamoe_dsl.layouts.arith import ceil_div
from megamoe_dsl.problem import Problem
from megamoe_dsl.schedule.fused_moe import Block, FusedMoeOrder, HostTable
from megamoe_dsl.schedule.scheduler import Scheduler

from .calibration import Calibration
from .machine import Floats, Ints, PoolTable


@dataclass(frozen=True)
class Tiles:
    """Arrays with an entry per tile: 1 for Linear2, local expert, weight block, pool block, and the tokens in the pool block."""

    is_fc2: Ints
    expert: Ints
    n_block: Ints
    pool_block: Ints
    valid: Ints

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Tiles:
        rows = [(one.phase, one.expert, one.n_block, one.pool_block, one.valid_m) for one in blocks]
        return cls(*np.array(rows, np.int64).reshape(-1, 5).T)

    def by_phase(self, fc1: Any, fc2: Any) -> Floats:
        """`fc1` for tiles of Linear1 and `fc2` for those of Linear2; both are numbers or arrays with an entry per tile."""
        return np.where(self.is_fc2 > 0, fc2, fc1).astype(np.float64)


@lru_cache(maxsize=8)
def tiles_of(config: MegaMoeConfig, counts: tuple[int, ...]) -> Tiles:
    """All tiles of a kernel's launch, for the tokens of the local experts."""
    order = FusedMoeOrder(config, HostTable.of(counts, config.block_m))
    return Tiles.of(Scheduler.blocks(order))


LATER_PULLS = 1.6
"""Time of a warp's later pulls over its first: in traces a token takes 7 to 10 us once all warps pull, and 5.5 to 6 before."""
SEED = 0
MOST_KEPT = 0.6  # Largest share of the weights, however few they are.
Y_BYTES = 2  # of a value of y


@dataclass(frozen=True)
class RankLoad:
    """Load of a rank: its own tokens, tokens of each local expert, and the fraction of these that comes from other ranks."""

    tokens: int
    counts: tuple[int, ...]
    remote: float

    @classmethod
    def uniform(cls, problem: Problem, tokens: int, remote: float | None = None) -> RankLoad:
        """The rank that reads most weights when every rank routes `tokens` uniformly; `remote` defaults to (ranks - 1) / ranks."""
        ranks, experts = problem.num_ranks, problem.num_experts
        every = np.random.default_rng(SEED).multinomial(tokens * problem.topk * ranks, np.full(experts, 1 / experts)).reshape(ranks, -1)
        slowest = max(every, key=lambda counts: ((counts > 0).sum(), counts.sum()))
        return cls(tokens, tuple(map(int, slowest)), (ranks - 1) / ranks if remote is None else remote)

    @property
    def received(self) -> int:
        return sum(self.counts)

    @property
    def touched(self) -> int:
        return sum(1 for count in self.counts if count)


@dataclass(frozen=True)
class KBlocks:
    """How K blocks are numbered: those of each expert's weights, Linear1 before Linear2, and then those of each block of the pool."""

    fc1: int
    fc2: int
    fc1_n: int
    fc2_n: int
    experts: int

    @classmethod
    def of(cls, problem: Problem, block_k: int = BLOCK_K) -> KBlocks:
        hidden, intermediate = problem.hidden, problem.intermediate
        n_blocks = ceil_div(2 * intermediate, TILE_ROWS), ceil_div(hidden, TILE_ROWS)
        return cls(ceil_div(hidden, block_k), ceil_div(intermediate, block_k), *n_blocks, problem.experts_per_rank)

    @property
    def of_expert(self) -> int:
        return self.fc1_n * self.fc1 + self.fc2_n * self.fc2

    def weights(self, tiles: Tiles) -> Ints:
        within = np.where(tiles.is_fc2, self.fc1_n * self.fc1 + tiles.n_block * self.fc2, tiles.n_block * self.fc1)
        return tiles.expert * self.of_expert + within

    def tokens(self, tiles: Tiles) -> Ints:
        return self.experts * self.of_expert + tiles.pool_block * (self.fc1 + self.fc2) + np.where(tiles.is_fc2, self.fc1, 0)

    def count(self, tiles: Tiles) -> Ints:
        return np.where(tiles.is_fc2, self.fc2, self.fc1)

    def pool(self, problem: Problem, load: RankLoad, blocks: HostTable, calibration: Calibration, warps: int, rounds: int) -> PoolTable:
        """When each pool block has been pulled: a warp's tokens one after the other, each in `rounds` of chunks, all over NVLink."""
        row, given = problem.formats.activations.row_bytes(problem.hidden), np.cumsum(blocks.valid, dtype=float)
        turns = 1 + LATER_PULLS * (np.ceil(given / warps) - 1)
        latency = calibration.pull + rounds * calibration.pull_round + row / calibration.pull_rate
        pulled = counted(calibration, load) + np.maximum(turns * latency, given * row * load.remote / calibration.nvlink)
        arrivals = np.full(len(blocks.valid), self.fc1_n)
        num_bytes = np.array(blocks.valid, float) * row
        return PoolTable(pulled, num_bytes, arrivals, self.experts * self.of_expert, self.fc1 + self.fc2, self.fc1)


def counted(calibration: Calibration, load: RankLoad) -> float:
    """Microseconds from the begin of the launch until ranks know each other's counts."""
    return calibration.start + calibration.start_per_token * load.tokens


def combine_bytes(problem: Problem, load: RankLoad) -> float:
    """Bytes that combine reads and writes for a rank's own tokens."""
    return load.tokens * (problem.topk * problem.formats.combine.bytes_per_value + Y_BYTES) * problem.hidden


def weights_kept(problem: Problem, load: RankLoad, weight_bytes: float, calibration: Calibration) -> float:
    """Share of the weights still in L2 from the previous launch."""
    all_bytes = load.touched * 3.0 * problem.hidden * problem.intermediate * weight_bytes
    return min(MOST_KEPT, calibration.weights_kept * calibration.l2_kept / max(all_bytes, 1.0))
