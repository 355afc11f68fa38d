"""What every role of an expert-parallel kernel needs: the configuration, this CTA's place, and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.gemm.context import GemmContext, GemmTile
from ....blocks.rank_barrier import RankContext
from ....device.memory import fence_async_global, load_shared_u32, load_u32
from ....device.sync import Equals32, spin
from ....layouts.arith import div
from ....layouts.records import tile_detail
from ..results import Bf16Results
from .layouts.symmetric import EpLaunch, EpWait, field_address


@dataclass(frozen=True)
class EpContext(RankContext):
    """`smem` is the shared address of the plan.  What is read where it is used takes no register of roles that do not use it."""

    waits = EpWait
    weighs_results: ClassVar[bool] = True

    config: cutlass.Constexpr[Any]
    args: Any
    smem: Int32

    @property
    def sm(self) -> Any:
        return cute.arch.block_idx()[0]

    @property
    def epoch(self) -> Any:
        """Launches of this kernel before this one, as they were when this CTA began."""
        return load_shared_u32(self.shared("epoch"))

    @property
    def results(self) -> Bf16Results:
        return Bf16Results(self.config.smem.combine.row, self.config.arch.adds_bf16)

    def at_peer(self, base: Any, name: str, *index: Any) -> Any:
        """Address in the symmetric buffer that starts at `base`; of the fields that kernels have for themselves, this one's."""
        return field_address(self.config, base, name, *index)


@dataclass(frozen=True)
class EpGemm(GemmContext):
    """The GEMM of the kernel `ep`; its `sm` is 0, that of `ep` is read where it is used."""

    ep: EpContext

    stamped = property(attrgetter("ep"))

    def detail(self, tile: GemmTile) -> Any:
        """The tile and which linear it is of."""
        return tile_detail(div(tile.row, self.ep.config.block_m), tile.n_block, int(self.ep.config.launch))

    def wait_rows(self, tile: GemmTile) -> None:
        """Until all rows of the tile's block are there, where dispatch brings them in the same launch."""
        if self.ep.config.launch == EpLaunch.DISPATCH:
            wait_rows(self.ep, tile)


def counter_of(ctx: EpContext, expert: Any, row: Any) -> Any:
    """Where rows are counted: those of the row's block, or of all of its local expert's."""
    return div(row, ctx.config.block_m) if ctx.config.block_wise else expert


@cute.jit
def wait_rows(ctx: EpContext, tile: GemmTile):
    """An acquire: what was written before the counter reached its value is visible after the wait, to TMA too."""
    index, rows = counter_of(ctx, tile.group, tile.row), tile.valid_m
    if cutlass.const_expr(not ctx.config.block_wise):
        rows = load_u32(ctx.at("expert_rows", tile.group))
    spin(Equals32(ctx.at("arrivals", ctx.epoch & 1, index), rows, "gpu"), ctx.watchdog, EpWait.ROWS, index)
    # Others wrote the scales through the generic proxy: one fence here replaces one in every writer.
    fence_async_global()
