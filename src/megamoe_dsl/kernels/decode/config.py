"""How the layer of a few tokens is computed on SM90, and the memory of a CTA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from ...arch import SM90, Arch
from ...blocks.gemm.problem import F32 as F32_WEIGHTS
from ...blocks.gemm.problem import I64, INDICES, OUTPUTS
from ...config_error import require, require_declared
from ...hardware.operand_tile import OPERAND_ALIGNMENT, ROW_BYTES
from ...hardware.tensor_map import MapFields
from ...layouts.arith import align
from ...layouts.region import BF16, F32, I32, U8, U16, U32, U64, Field, MBarrier, Region
from ...target import Target
from .problem import FC1, FC2, DecodeProblem
from .weights import PackedRows, PlainRows

TOKENS = (8, 16)
"""Columns of a wgmma, and most tokens of a launch."""
MOST_TOKENS = TOKENS[-1]
GROUPS = 2
"""Warpgroups that multiply: each takes every other tile, from a ring of its own."""
K_IN_FLIGHT = 2
"""K blocks that one has in the tensor core at a time, where sums are promoted."""
GROUP_WARPS = 4
WORK_TILES = 8
LINE = 128
"""Bytes of L2."""
ABSENT = -1
"""A word of two BF16 or of a float that no arithmetic makes: a NaN with all bits set."""
MOST_BYTES = 64 << 20
"""Most bytes of a stream's memory."""


@dataclass(frozen=True)
class DecodeConfig:
    """Compile-time choices; raises `ConfigError` where a field is out of range.

    block_m      most tokens of a launch, and rows of an expert in a tile: 8 or 16
    num_sms      CTAs of the grid
    num_stages   depth of a ring; 0 chooses the deepest that fits, up to the source's `most_stages`
    indices, weights  types of top-k indices, i64 or i32, and of top-k weights, f32 or bf16
    """

    arch: ClassVar[Arch] = SM90
    cluster: ClassVar[int] = 1

    problem: DecodeProblem
    block_m: int
    num_sms: int
    num_stages: int = 0
    indices: str = I64
    weights: str = F32_WEIGHTS

    def __post_init__(self) -> None:
        require_declared(self, DecodeProblem)
        require(self.block_m in TOKENS, "block_m", self.block_m, " or ".join(map(str, TOKENS)))
        require(self.num_sms >= 1, "num_sms", self.num_sms, "positive")
        require(self.indices in INDICES, "indices", self.indices, " or ".join(INDICES))
        require(self.weights in OUTPUTS, "weights", self.weights, " or ".join(OUTPUTS))
        promoted, recipe = self.problem.formats.promoted, self.problem.recipe
        require(promoted or not self.problem.formats.scaled, "problem.recipe", recipe, "fp8xfp8, fp8xmxfp4 or bf16xbf16")
        size, shape = self.memory, f"{self.problem.hidden}, {self.problem.intermediate}, {self.problem.topk}"
        fields = "problem.hidden, problem.intermediate, problem.topk"
        require(size <= MOST_BYTES, fields, shape, f"such that results between the linears fit {MOST_BYTES} bytes, not {size}")
        most = 0
        while self.region_of(most + 1).size <= self.arch.smem_bytes:
            most += 1
        if self.num_stages == 0:
            object.__setattr__(self, "num_stages", min(most, self.source.most_stages))
        require(2 * self.burst <= self.num_stages <= most, "num_stages", self.num_stages, f"between {2 * self.burst} and {most}, or 0")

    @classmethod
    def choose(cls, problem: DecodeProblem, target: Target, num_tokens: int, **fields: Any) -> Self:
        """The configuration for so many tokens.  Raises `ConfigError` for more than a launch takes."""
        block_m = next((m for m in TOKENS if num_tokens <= m), None)
        require(block_m is not None, "num_tokens", num_tokens, f"at most {MOST_TOKENS}")
        return cls(problem, **{"block_m": block_m, "num_sms": target.num_sms, **fields})

    # --- work
    def k_blocks(self, phase: int) -> int:
        """Blocks of 128 bytes in a row of what a linear reads."""
        return -(-self.problem.formats.activations.row_bytes(self.problem.k(phase)) // ROW_BYTES)

    def n_blocks(self, phase: int) -> int:
        """Tiles of an expert's weights; the last one of Linear2 may be partial."""
        return -(-self.problem.n(phase) // self.source.rows)

    @property
    def source(self) -> PlainRows:
        """How a tile of weights lies in memory and is loaded: rows as they are, or packed E2M1."""
        return PackedRows() if self.problem.packed else PlainRows()

    @property
    def burst(self) -> int:
        """K blocks of weights that are requested at once."""
        return self.source.burst([self.k_blocks(phase) for phase in (FC1, FC2)])

    @property
    def slots(self) -> int:
        """Most top-k slots of a launch, and most tiles of rows."""
        return self.block_m * self.problem.topk

    # --- threads
    @property
    def num_threads(self) -> int:
        return 32 * (self.loader_warps + GROUP_WARPS * GROUPS)

    @property
    def loader_warps(self) -> int:
        """Before those that multiply: whole warpgroups."""
        return align(1 + GROUPS * self.source.row_warps, GROUP_WARPS)

    # --- global memory
    @property
    def map_names(self) -> tuple[str, ...]:
        return self.source.map_names

    def maps(self, args: Any) -> list[MapFields]:
        """Fields of the tensor maps, in the order of `map_names`."""
        return self.source.maps(self, args)

    @cached_property
    def results(self) -> Region:
        """h: activated gate and up of each slot.  rows: what Linear2 makes of them.  Nobody writes a word that is `ABSENT`, so who reads
        one that is waits for the one that will be."""
        hidden = F32 if self.problem.formats.scaled else BF16
        return Region.stack(
            "results",
            Field("h", (self.slots, self.problem.intermediate), hidden, LINE),
            Field("rows", (self.slots, self.problem.hidden), BF16, LINE),
        )

    @property
    def memory(self) -> int:
        """Bytes: a line that begins with the number of the next tile, 0 at first, and two regions of `results`, all `ABSENT` at first.  The
        number's highest bit says in which of them a launch writes.  It clears the other one, which the launch before it has left."""
        return LINE + 2 * self.results.size

    # --- shared memory
    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order."""
        readers, stages = 32 * (self.source.row_warps + GROUP_WARPS), GROUPS * self.num_stages
        return (
            MBarrier("full", stages, 2, "weight loader and the warp that loads rows", "weights", "math warps"),
            MBarrier("empty", stages, GROUP_WARPS, "every warp of the warpgroup that reads it", "", "loaders"),
            MBarrier("work_tile_full", WORK_TILES, 1, "weight loader", "", "row loaders, math warps"),
            MBarrier("work_tile_empty", WORK_TILES, readers, "every lane of row loaders and the tile's warpgroup", "", "weight loader"),
        )

    def region_of(self, stages: int) -> Region:
        """Shared memory with rings of so many stages.

        expert_of, weight_of  each slot's expert, -1 where it is masked, and top-k weight
        block_of  the tile of rows that a first slot begins
        experts, counts, slots  of each tile of rows its expert, how many rows it has, and which
        totals  tiles of rows that a warp's slots begin
        blocks  tiles of rows that there are, and what the counter of tiles said first
        """
        slots, rings = -(-self.slots // 4) * 4, GROUPS * stages
        return Region.stack(
            "smem",
            Field("weights", (rings, self.source.num_bytes), U8, OPERAND_ALIGNMENT),
            Field("tokens", (rings, self.block_m * ROW_BYTES), U8, OPERAND_ALIGNMENT),
            Field("sfa", (rings, self.block_m), F32, 16),
            Field("work_tiles", (WORK_TILES, 4), U32, 16),
            *self.source.tables,
            Field("expert_of", (slots,), I32, 16),
            Field("weight_of", (slots,), F32),
            Field("block_of", (slots,), U32),
            Field("experts", (slots,), U32),
            Field("counts", (slots,), U32),
            Field("slots", (slots, self.block_m), U16),
            Field("totals", (self.num_threads // 32,), U32),
            Field("blocks", (2,), U32, 8),
            Field("full_barrier", (rings,), U64),
            Field("empty_barrier", (rings,), U64),
            Field("work_tile_full_barrier", (WORK_TILES,), U64),
            Field("work_tile_empty_barrier", (WORK_TILES,), U64),
        )

    @cached_property
    def region(self) -> Region:
        return self.region_of(self.num_stages)

    @property
    def smem(self) -> Self:
        """Itself: it has `region` and `barriers`."""
        return self
