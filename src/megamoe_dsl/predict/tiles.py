"""The tiles of a launch as arrays, in the order in which they are handed out: of the kernels' own schedule, or of another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from ..kernels.moe.config import MegaMoeConfig
from ..layouts.arith import ceil_div
from ..schedule.fused_moe import Block, FusedMoeOrder
from ..schedule.scheduler import Scheduler
from .server import Floats, Ints


@dataclass(frozen=True)
class TokenBlocks:
    """Tokens of the local experts, each in blocks of `block_m`; a `schedule.ExpertTable`.

    first   each expert's first block, and after the last expert the number of blocks
    valid   tokens of each block
    """

    counts: tuple[int, ...]
    first: tuple[int, ...]
    valid: tuple[int, ...]

    @classmethod
    def of(cls, counts: Sequence[int], block_m: int) -> TokenBlocks:
        blocks = [ceil_div(tokens, block_m) for tokens in counts]
        valid = [min(block_m, tokens - m * block_m) for tokens, n in zip(counts, blocks, strict=True) for m in range(n)]
        return cls((*counts, 0), (0, *accumulate(blocks)), tuple(valid))

    def tokens(self, expert: int) -> int:
        """Tokens of an expert; none after the last."""
        return self.counts[expert]

    def first_block(self, expert: int) -> int:
        return self.first[expert]


@dataclass(frozen=True)
class Tiles:
    """An entry per tile: whether it is of Linear2, its local expert, weight block, block of the pool, and the tokens in that."""

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
        """One value for tiles of Linear1 and another for those of Linear2: numbers, or arrays with an entry per tile."""
        return np.where(self.is_fc2 > 0, fc2, fc1).astype(np.float64)


@lru_cache(maxsize=8)
def tiles_of(config: MegaMoeConfig, counts: tuple[int, ...]) -> Tiles:
    """All tiles of a kernel's launch, for the tokens of the local experts."""
    order = FusedMoeOrder(config, TokenBlocks.of(counts, config.block_m))
    return Tiles.of(Scheduler.blocks(order))
