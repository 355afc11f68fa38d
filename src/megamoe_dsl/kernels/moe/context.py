"""What every role needs: the tile that it works on, the configuration, this CTA's place, and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Self

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...blocks.cta import shared_memory
from ...blocks.rank_barrier import RankContext
from ...blocks.tiles import TileContext
from ...device.memory import load_u64
from ...device.ring import TileQueue, read_tile
from ...device.stamps import detail_of, stamp
from ...hardware.tensor_map import DESCRIPTOR_BYTES
from ...layouts.arith import select
from ...layouts.records import Activity, Role
from ...schedule.fused_moe import FC1, FC2, mma_tokens
from .layouts.smem_plan import CombineRow, Wait
from .results import Bf16Results, E4m3Results


@dataclass(frozen=True)
class WorkTile:
    """A block of the sequence (schedule.Block); the one that ends the walk has `valid_m` of 0 or less."""

    phase: Int32
    expert: Int32
    n_block: Int32
    pool_block: Int32
    valid_m: Int32
    # whether the tiles of the cluster have one token block; if not, they have one weight block; of no use to a CTA pair
    same_tokens: cutlass.Boolean

    same_weights = property(lambda self: self.same_tokens == 0)
    mma_n = property(lambda self: mma_tokens(self.valid_m))  # tokens that the MMA of a CTA pair covers

    def valid(self) -> cutlass.Boolean:
        return self.valid_m > 0


@cute.jit
def next_tile(queue: TileQueue, used: cutlass.Constexpr[tuple[int, ...]] = (0,)) -> tuple[WorkTile, TileQueue]:
    """A warp that works on tiles: its next one, and the place of the one after it.  `used` as in `read_tile`."""
    (which, n_block, pool_block, valid_m), following = read_tile(queue, used)
    return WorkTile(which & 1, which >> 2, n_block, pool_block, valid_m, (which & 2) != 0), following


@dataclass(frozen=True)
class Context(RankContext, TileContext):
    """`config` is the architecture's, `smem` its plan's address, `sm` the CTA's index in the grid, `cta_rank` its place in the pair."""

    waits = Wait

    operands_arrive: ClassVar[bool] = True
    """Whether what Linear1 and Linear2 read is written while this launch runs; else launches before it have written it."""
    result_phase: ClassVar[int] = FC2
    region = property(attrgetter("config.symmetric"))
    weighs_results = property(attrgetter("config.problem.weigh_results"))

    config: cutlass.Constexpr[Any]
    args: Any
    smem: Int32
    sm: Int32
    cta_rank: Int32

    @classmethod
    def of_cta(cls, config: Any, args: Any) -> Self:
        """Makes the context from the place that the hardware gave this CTA."""
        rank = Int32(cute.arch.block_idx_in_cluster() if config.cluster > 1 else 0)
        return cls(config, args, shared_memory(config.smem.region), cute.arch.block_idx()[0], rank)

    @property
    def results(self) -> Bf16Results | E4m3Results:
        row = CombineRow(self.config.problem.hidden, self.config.problem.formats.combine)
        return E4m3Results(row) if row.scaled else Bf16Results(row, self.config.arch.adds_bf16)

    outputs = property(attrgetter("results"))  # in which format the Linear2 epilogue gives its results

    def result_place(self, row: Any) -> Any:
        """Where the destinations of results lie, from pool row `row` on: addresses of combine rows on the tokens' ranks."""
        return self.at("token_src_metadata", row)

    def result_rows(self, place: Any, steps: range) -> list[Any]:
        """Destinations of the rows `steps` after the first."""
        return [load_u64(place + step * 8) for step in steps]

    next_tile, detail = staticmethod(next_tile), staticmethod(detail_of)

    def take_first(self, role: Role | None) -> tuple[WorkTile, TileQueue]:
        tile, tiles = super().take_first(role)
        stamp(self, Activity.WAIT_COUNTS)
        return tile, tiles

    def read_end(self, tile: WorkTile, queue: TileQueue) -> None:
        """Reads the other warpgroups' end marks: every place of the queue must be read by all warps that read tiles."""
        for _ in range(self.config.alternating_groups - 1):
            _, queue = next_tile(queue)

    def is_half(self, tile: Any) -> Any:
        """On SM90, whether all of the tokens are in the first half of the tile: then both warpgroups multiply that half."""
        return True if self.config.swap_ab else tile.valid_m <= self.config.part_tokens

    def k_blocks_of(self, tile: Any) -> Int32:
        return select(tile.phase == FC1, Int32(self.config.fc1_k_blocks), Int32(self.config.fc2_k_blocks))

    def map(self, which: str, phase: Any = 0) -> Any:
        table = self.config.table_maps
        first, stride = table.index(which) * DESCRIPTOR_BYTES, table.index("tokens", 1) * DESCRIPTOR_BYTES
        return self.args.maps + (first + phase * stride) if isinstance(phase, int) else self.args.maps + Int64(phase * stride) + first
