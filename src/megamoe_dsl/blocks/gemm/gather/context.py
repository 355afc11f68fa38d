"""What every role needs: that of a packed GEMM, and where rows of A lie."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from cutlass import Int32, Int64

from ....device.memory import fence_async_shared, load_shared_u32
from ....layouts.activity import Activity, Role, tile_detail
from ....layouts.arith import div
from ...trace import begin, stamp
from ..context import GemmContext, GemmStage
from ..group_table import GroupTable
from ..work_tile import GemmTile
from .arguments import GatherGemmArguments
from .problem import GATE_FIRST, UP_FIRST
from .scaled_stage import ScaledStage


@dataclass(frozen=True)
class GatherMaps:
    """Addresses of the tensor maps; the others are `SortedMaps`."""

    weights: Int64
    d: Int64

    @property
    def weights_part(self) -> Int64:
        """Nobody fetches a part of them."""
        return self.weights


@dataclass(frozen=True)
class SortedMaps(GatherMaps):
    """Of rows that TMA loads."""

    tokens: Int64
    tokens_part: Int64
    sfa: Int64


@dataclass(frozen=True)
class GatheredStage(ScaledStage, GemmStage):
    """A stage whose rows threads have written."""

    def wait_full(self) -> None:
        """A reader: until the stage is loaded, and the tensor core sees it."""
        super().wait_full()
        fence_async_shared()


@dataclass(frozen=True)
class GatherContext(GemmContext):
    """`config` is a `GatherGemmConfig`, or that of SM100."""

    args: GatherGemmArguments

    @property
    def first_copied_stage(self) -> ScaledStage:
        first = self.first_stage
        return ScaledStage(first.plan, first.cluster, first.smem, first.ring, *self._scales)

    @property
    def first_read_stage(self) -> GemmStage:
        first = super().first_read_stage
        if not self.config.problem.gathers:
            return first
        of_stage: list[Any] = [*(getattr(first, one.name) for one in fields(first)), *self._scales]
        return GatheredStage(*of_stage)

    @property
    def _scales(self) -> tuple[int, int, Int32]:
        """What a `ScaledStage` knows of scales, at first."""
        return self.config.smem.scales_at_once, self.config.smem.scale_places, Int32(0)

    def scale_row(self, first: Any, index: int) -> Any:
        """Row of a matrix B's scales: of gate, then of up, which lie half of B apart."""
        problem = self.config.problem
        if problem.gate_up not in (GATE_FIRST, UP_FIRST):
            return super().scale_row(first, index)
        second = index == (problem.gate_up == GATE_FIRST)
        return (first >> 1) + second * (problem.scale_rows // 2)

    def begin(self, role: Role) -> None:
        """In a kernel that is traced."""
        if self.config.trace:
            begin(self, role)

    def stamp(self, activity: Activity, tile: GemmTile) -> None:
        """With the tile, in a kernel that is traced."""
        if self.config.trace:
            stamp(self, activity, tile_detail(div(tile.row, self.config.block_m), tile.n_block, 0))

    def source_row(self, tile: GemmTile) -> Any:
        """Row of A that a tile begins at, or of the list that says which rows of A are the tile's."""
        if not self.config.problem.places_rows:
            return tile.row
        return (
            tile.row
            - GroupTable(self.shared("group_table")).first_row(tile.group)
            + load_shared_u32(self.shared("source_rows", tile.group))
        )
