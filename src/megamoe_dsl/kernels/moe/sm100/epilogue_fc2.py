"""Linear2 tile: rows of results straight into the combine buffers of the tokens' ranks (article 4.5.5); how they get there is a block
(blocks/sm100/results.py).

signals   nothing per tile: the rank barrier BEFORE_COMBINE covers all remote writes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32

from ....blocks.sm100.results import ResultPart, store_results
from ....hardware.cta_pair import CLUSTER
from ..context import Context
from ..layouts.tile import NamedBarrier
from .bias import load_biases, with_bias


@dataclass(frozen=True)
class PoolResults:
    """Results of the `valid` tokens from pool row `row` on; `biases` are of the thread's weight rows, if the layer has any."""

    ctx: Context
    row: Int32
    valid: Int32
    biases: tuple[Float32, ...]

    def finished(self, first: Any, sums: Sequence[Any]) -> Sequence[Any]:
        return with_bias(self.ctx, self.ctx.result_phase, sums, self.biases, self.row + first)

    def begin(self, first: Any, own_row: Any) -> Any:
        """Address of what says where they go."""
        return self.ctx.result_place(self.row + first + own_row)

    def addresses(self, begun: Any, steps: range) -> list[Any]:
        return self.ctx.result_rows(begun, steps)

    def has(self, row: Any) -> Any:
        """Whether the tile has the token."""
        return row < self.valid

    def send(self, place: Any, first: Any, lane: Any, words: Any) -> None:
        self.ctx.outputs.send(place, first, lane, words)

    @property
    def value_bytes(self) -> int:
        return self.ctx.outputs.row.value_bytes


@cute.jit
def finish_fc2(ctx: Context, tile):
    """One tile, `store_block_m` tokens at a time."""
    config, block = ctx.config, tile.block
    n_block = block.n_block * CLUSTER + ctx.cta_rank
    rows = PoolResults(ctx, block.pool_block * config.block_m, block.valid_m, load_biases(ctx, tile, ctx.result_phase, n_block))
    shape: Any = (block.valid_m, n_block, config.store_block_m, NamedBarrier.EPILOGUE_GROUP)
    store_results(ResultPart(tile.column, ctx.shared("cd", tile.group), tile.group, tile.warp, tile.lane, *shape), rows)
