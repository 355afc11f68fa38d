"""How the layer of a few tokens is computed on SM90, and the memory of a CTA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

from ...arch import SM90, Arch
from ...blocks.gemm.problem import F32 as F32_WEIGHTS
from ...blocks.gemm.problem import I64, INDICES, OUTPUTS
from ...config_error import CheckedConfig
from ...hardware.operand_tile import OPERAND_ALIGNMENT, ROW_BYTES
from ...hardware.tensor_map import MapFields
from ...layouts.arith import align
from ...layouts.region import BF16, F32, I32, PLAN_OF_RING, U8, U16, U32, Field, MBarrier, Region, SharedPlan, deepest_ring
from .problem import FC1, FC2, DecodeProblem
from .weights import PackedRows, PlainRows

TOKENS = (8, 16)  # most of a launch, and columns of a wgmma
MOST_TOKENS = TOKENS[-1]
GROUPS = 2  # warpgroups that multiply: each takes every other tile, from a ring of its own
GROUP_WARPS = 4
WORK_TILES = 8
LINE = 128  # bytes of L2
ABSENT = -1  # a word of two BF16 or of a float that no arithmetic makes: a NaN with all bits set
MOST_BYTES = 64 << 20  # most bytes of a stream's memory


@dataclass(frozen=True)
class DecodeConfig(CheckedConfig):
    """Compile-time choices; raises `ConfigError` where a field is out of range."""

    arch: ClassVar[Arch] = SM90
    cluster: ClassVar[int] = 1

    problem: DecodeProblem
    max_tokens: int  # of a launch: 8 or 16
    num_sms: int  # CTAs of the grid
    num_stages: int = 0  # depth of a ring; 0 chooses the deepest that fits, up to the source's `most_stages`
    indices: str = I64  # type of top-k indices: i64 or i32
    weights: str = F32_WEIGHTS  # type of top-k weights: f32 or bf16

    def __post_init__(self) -> None:
        self.check_declared(DecodeProblem)
        self.require_any("max_tokens", TOKENS)
        self.require("num_sms", self.num_sms >= 1, "positive")
        self.require_any("indices", INDICES)
        self.require_any("weights", OUTPUTS)
        taken = self.problem.formats.promoted or not self.problem.formats.scaled
        self.require("problem.recipe", taken, "fp8xfp8, fp8xmxfp4 or bf16xbf16")
        fits = f"such that results between the linears fit {MOST_BYTES} bytes, not {self.memory}"
        self.require("problem.hidden, problem.intermediate, problem.topk", self.memory <= MOST_BYTES, fits)
        most = deepest_ring(self)
        if self.num_stages == 0:
            object.__setattr__(self, "num_stages", min(most, self.source.most_stages))
        self.require("num_stages", 2 * self.burst <= self.num_stages <= most, f"between {2 * self.burst} and {most}, or 0")

    # --- work
    def k_blocks(self, phase: int) -> int:
        """Blocks of 128 bytes in a row of what a linear reads."""
        return -(-self.problem.formats.activations.row_bytes(self.problem.k(phase)) // ROW_BYTES)

    def n_blocks(self, phase: int) -> int:
        """Tiles of an expert's weights; the last one of Linear2 may be partial."""
        return -(-self.problem.n(phase) // self.source.rows)

    @property
    def source(self) -> PlainRows:
        return PackedRows() if self.problem.formats.decodes else PlainRows()

    block_m = property(lambda self: self.source.most_rows or self.max_tokens)  # rows of an expert in a tile
    burst = property(lambda self: 1 if self.source.part or any(self.k_blocks(phase) % 2 for phase in (FC1, FC2)) else 2)
    slots = property(lambda self: self.max_tokens * self.problem.topk)  # most top-k slots of a launch, and most tiles of rows

    @property
    def facts(self) -> list[tuple[str, object]]:
        tile = f"{self.block_m} rows x {self.source.rows} weights x 128 bytes on {GROUPS} warpgroups in turn"
        return [("tile", f"{tile}; rows are the wgmma's columns"), ("stages", self.num_stages)]

    # --- threads
    num_threads = property(lambda self: 32 * (self.loader_warps + GROUP_WARPS * GROUPS))
    loader_warps = property(lambda self: align(1 + GROUPS * self.source.row_warps, GROUP_WARPS))

    # --- global memory
    map_names = property(attrgetter("source.map_names"))

    def maps(self, args: Any) -> list[MapFields]:
        return self.source.maps(self, args)

    @cached_property
    def results(self) -> Region:
        """h: activated gate and up of each slot; rows: Linear2 of them.  No result is the word `ABSENT`: a reader that finds it polls until
        the result is there."""
        hidden = F32 if self.problem.formats.scaled else BF16
        return Region.stack(
            "results",
            Field("h", (self.slots, self.problem.intermediate), hidden, LINE),
            Field("rows", (self.slots, self.problem.hidden), BF16, LINE),
        )

    @property
    def memory(self) -> int:
        """Bytes: a line that begins with the counter of tiles, at first 0, and two regions of `results`, at first all `ABSENT`.  A launch
        writes one region, which the counter's highest bit selects, and clears the other one for the next launch."""
        return LINE + 2 * self.results.size

    # --- shared memory
    smem = PLAN_OF_RING

    def smem_plan(self, num_stages: int) -> SharedPlan:
        """One ring of `num_stages` for each warpgroup; a block is a tile of an expert's rows."""
        slots, rings, readers = -(-self.slots // 4) * 4, GROUPS * num_stages, 32 * (self.source.row_warps + GROUP_WARPS)
        barriers = (
            MBarrier("full", rings, 2, "weight loader and the warp that loads rows", "weights", "math warps"),
            MBarrier("empty", rings, GROUP_WARPS, "every warp of the warpgroup that reads it", "", "loaders"),
            MBarrier("work_tile_full", WORK_TILES, 1, "weight loader", "", "row loaders, math warps"),
            MBarrier("work_tile_empty", WORK_TILES, readers, "every lane of row loaders and the tile's warpgroup", "", "weight loader"),
        )
        region = Region.stack(
            "smem",
            Field("weights", (rings, self.source.num_bytes), U8, OPERAND_ALIGNMENT),
            Field("tokens", (rings, self.block_m * ROW_BYTES), U8, OPERAND_ALIGNMENT),
            Field("sfa", (rings, self.block_m), F32, 16),
            Field("work_tiles", (WORK_TILES, 4), U32, 16),
            *self.source.tables,
            Field("expert_of", (slots,), I32, 16),  # of each slot, -1 where it is masked
            Field("weight_of", (slots,), F32),  # of each slot, the top-k weight
            Field("block_of", (slots,), U32),  # that a first slot begins
            Field("experts", (slots,), U32),  # of each block
            Field("counts", (slots,), U32),  # of each block, how many rows it has
            Field("slots", (slots, self.block_m), U16),  # of each block, which rows
            Field("totals", (self.num_threads // 32,), U32),  # blocks that a warp's slots begin
            Field("blocks", (2,), U32, 8),  # how many there are, and what the counter of tiles said first
            *(one.field for one in barriers),
        )
        return SharedPlan(region, barriers)
