"""What every role needs: the configuration, this CTA's place, and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass
from cutlass import Int32, Int64

from ...blocks.rank_barrier import RankContext
from ...device.memory import load_u64
from ...device.ring import Stage, TileQueue
from ...device.warp import ClusterPlace, named_barrier
from ...hardware.tensor_map import DESCRIPTOR_BYTES
from ...layouts.arith import select
from ...layouts.region import Region
from ...schedule.fused_moe import FC1, FC2
from .layouts.smem_plan import CombineRow, NamedBarrier
from .layouts.waits import Wait
from .results import Bf16Results, E4m3Results


@dataclass(frozen=True)
class Context(RankContext):
    """`config` is the architecture's configuration, `smem` the shared address of its plan, `sm` the CTA's index in the grid, `cta_rank` its
    place in the pair."""

    waits = Wait

    operands_arrive: ClassVar[bool] = True
    """Whether what Linear1 and Linear2 read is written while this launch runs; else launches before it have written it."""

    config: cutlass.Constexpr[Any]
    args: Any
    smem: Int32
    sm: Int32
    cta_rank: Int32

    @property
    def region(self) -> Region:  # type: ignore[override]
        return self.config.symmetric  # type: ignore[no-any-return]

    @property
    def results(self) -> Bf16Results | E4m3Results:
        row = CombineRow(self.config.problem.hidden, self.config.problem.formats.combine)
        return E4m3Results(row) if row.scaled else Bf16Results(row, self.config.arch.adds_bf16)

    @property
    def outputs(self) -> Bf16Results | E4m3Results:
        """In which format the Linear2 epilogue gives its results."""
        return self.results

    @property
    def result_phase(self) -> int:
        return FC2

    def result_place(self, row: Any) -> Any:
        """What says where results of pool rows from `row` on go: the addresses of their tokens' combine rows, on the tokens' ranks."""
        return self.at("token_src_metadata", row)

    def result_rows(self, place: Any, steps: range) -> list[Any]:
        """Where those so many rows after the first go."""
        return [load_u64(place + step * 8) for step in steps]

    def sync_epilogue(self) -> None:
        """All threads of the warps that finish tiles."""
        named_barrier(NamedBarrier.EPILOGUE_ALL, 32 * self.config.epilogue_warps)

    @property
    def place(self) -> ClusterPlace:
        return ClusterPlace(self.cta_rank, self.config.cluster)

    @property
    def first_stage(self) -> Stage:
        return Stage.first(self.config.smem.region, self.smem, self.config.num_stages, self.config.cluster)

    @property
    def first_tile(self) -> TileQueue:
        return TileQueue.start(self.config.smem.region, self.smem, self.config.smem.work_tiles, self.config.cluster)

    def k_blocks(self, tile: Any) -> Int32:
        return select(tile.phase == FC1, Int32(self.config.fc1_k_blocks), Int32(self.config.fc2_k_blocks))

    def map(self, which: Any, phase: Any = 0) -> Any:
        """Address of a tensor map; `phase` is 0 for Linear1, 1 for Linear2."""
        stride = self.config.maps_per_linear * DESCRIPTOR_BYTES
        if isinstance(phase, int):
            return self.args.maps + (which * DESCRIPTOR_BYTES + phase * stride)
        return self.args.maps + Int64(phase * stride) + which * DESCRIPTOR_BYTES
