"""What every role of an expert-parallel kernel needs: the configuration, this CTA's place, and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...blocks.rank_place import RankPlace
from ...device.memory import fence_async_global, load_shared_u32
from ...device.sync import Equals32, spin
from ...device.tile_queue import TileQueue
from ...layouts.arith import div
from ...layouts.region import Region
from ..gemm.context import GemmContext
from ..gemm.work_tile import GemmTile
from .layouts.symmetric import PER_LAUNCH, EpLaunch, symmetric_buffer
from .layouts.watchdog import EpWait
from .smem_plan import TASKS

TASK_FIELDS = {"work_tiles": "tasks", "work_tile_full_barrier": "task_full_barrier", "work_tile_empty_barrier": "task_empty_barrier"}


@dataclass(frozen=True)
class TaskQueue(TileQueue):
    """The queue of the communication warps, beside that of tiles."""

    def shared(self, name: str) -> Any:
        """Shared address of a field of the plan, in this place."""
        return super().shared(TASK_FIELDS[name])


@dataclass(frozen=True)
class EpContext(RankPlace):
    """`smem` is the shared address of the plan, `kernel` which of the two it is.  What is read where it is used takes no register of roles
    that do not use it."""

    waits = EpWait

    config: cutlass.Constexpr[Any]
    args: Any
    smem: Int32
    kernel: cutlass.Constexpr[EpLaunch]

    @property
    def sm(self) -> Any:
        """The CTA's index in the grid."""
        return cute.arch.block_idx()[0]

    @property
    def epoch(self) -> Any:
        """Launches of this kernel before this one, as they were when this CTA began."""
        return load_shared_u32(self.shared("epoch"))

    @property
    def region(self) -> Region:
        """The layout of a rank's symmetric buffer."""
        return symmetric_buffer(self.config.problem)

    def at(self, name: str, *index: Any) -> Any:
        """Address in this rank's symmetric buffer."""
        return self.at_peer(self.args.sym, name, *index)

    def at_peer(self, base: Any, name: str, *index: Any) -> Any:
        """Address in the symmetric buffer that starts at `base`; of the fields that kernels have for themselves, this one's."""
        own = (int(self.kernel),) if name in PER_LAUNCH else ()
        return self.region.address(base, name, *own, *index)

    # --- shared memory
    @property
    def first_task(self) -> TaskQueue:
        """Of the queue of the communication warps."""
        queue = TileQueue.start(self.config.smem.region, self.smem, TASKS)
        return TaskQueue(queue.plan, queue.cluster, queue.smem, queue.ring)

    def shared(self, name: str, *index: Any) -> Any:
        """Shared address of an element of the SMEM plan."""
        return self.config.smem.region.address(self.smem, name, *index)

    def barrier(self, name: str, index: Any = 0) -> Any:
        """Shared address of an mbarrier (barriers.py)."""
        return self.shared(f"{name}_barrier", index)


@dataclass(frozen=True)
class ArrivingGemm(GemmContext):
    """The GEMM whose rows of A dispatch brings in the same launch, to the symmetric buffer of `ep`."""

    ep: EpContext

    def wait_rows(self, tile: GemmTile) -> None:
        """Until all rows of the tile's block are there."""
        wait_rows(self.ep, tile)


@cute.jit
def wait_rows(ctx: EpContext, tile: GemmTile):
    """An acquire: what was written before the counter reached its value is visible after the wait, to TMA too."""
    block = div(tile.row, ctx.config.block_m)
    spin(Equals32(ctx.at("arrivals", ctx.epoch & 1, block), tile.valid_m, "gpu"), ctx.watchdog, EpWait.ROWS, block)
    # Others wrote the scales through the generic proxy: one fence here replaces one in every writer.
    fence_async_global()
