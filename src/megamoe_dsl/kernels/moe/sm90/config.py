"""How a problem is computed on SM90: tiles of 256 weight rows by `block_m` tokens, accumulators in registers.

Tiles of up to 32 tokens have them as the N of the wgmma (swap-AB), so that a tile can be as small as 8 without padding.  Tiles of 128
tokens have them as its M; when no more than 64 of them exist, half a tile is fetched and multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import ClassVar, Self

from ....arch import SM90, Arch
from ....hardware.operand_tile import BLOCK_K
from ....hardware.packed_tile import TILE_BYTES
from ....layouts.arith import Int, ceil_div
from ....problem import Problem
from ..config import MegaMoeConfig, PerRole
from ..layouts.smem_plan import DISPATCH_WARPS, LOADER_WARPS, TILE_ROWS, WARPS_PER_GROUP, SmemPlan, row_chunks
from . import memory_plan
from .memory_plan import FC1_OUTPUTS, MATH_WARPGROUPS, MOST_COLUMNS, PULL_SLOTS, pull_chunk

BLOCK_M = (8, 16, 32, 128)
PACKED_BLOCK_M = (8, 16, 32, 64, 128)
"""Tiles of packed weights, which have up to 64 tokens as columns of the wgmma."""
REGISTERS = {"dispatch": 40, "loader": 40, "epilogue": 216}
DECODE_REGISTERS = {"dispatch": 32, "loader": 32, "epilogue": 216, "decode": 48}
"""As many threads as without decode warps: dispatch and loaders are one warpgroup."""
NUM_SMS = 132  # of an H200
PACKED_COLUMNS = 64  # tokens of the largest tile of packed weights that has them as columns; larger tiles decode weights first


def cluster_sizes(problem: Problem, block_m: int, num_sms: int) -> tuple[int, ...]:
    """Allowed values of `cluster`.  Its two CTAs take two consecutive blocks of the schedule, which must be of one expert and one phase."""
    weight_blocks = (ceil_div(2 * problem.intermediate, TILE_ROWS), ceil_div(problem.hidden, TILE_ROWS))
    even = all(n % 2 == 0 for n in (*weight_blocks, num_sms))
    return (1, 2) if even and block_m == BLOCK_M[-1] else (1,)


@dataclass(frozen=True)
class Sm90Config(MegaMoeConfig):
    """Compile-time choices of the SM90 kernel; raises `ConfigError` where a field is out of range."""

    arch: ClassVar[Arch] = SM90
    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp8", "fp8xmxfp4", "bf16xbf16")
    group_m: ClassVar[int] = 16  # holds all blocks of an expert of Pro with 8192 tokens, which HBM then reads once (docs/lab/hopper.md)
    table_maps: ClassVar[tuple[str, ...]] = memory_plan.TABLE_MAPS
    smem_plan, linear_maps, output_maps = memory_plan.smem_plan, memory_plan.linear_maps, memory_plan.output_maps
    alternating_groups: ClassVar[int] = 1
    blocks_per_fetch = property(attrgetter("cluster"))
    packed = property(attrgetter("problem.formats.decodes"))
    # whether operands have scales, so that partial sums leave the tensor core; else sums stay there over all of K
    scaled = property(attrgetter("problem.formats.scaled"))
    linear_registers: ClassVar[Mapping[str, int]] = {"loader": 40, "epilogue": 232}

    cluster: int = 1  # CTAs that share loads of neighboring tiles; 2 only with tiles of 128 tokens

    def check_fields(self) -> None:
        """At least two CTAs, and a cluster that the shape allows.  Raises `ConfigError`."""
        self.require("num_sms", self.num_sms >= 2, "at least 2")
        clusters = cluster_sizes(self.problem, self.block_m, self.num_sms)
        self.require("cluster", self.cluster in clusters, f"among {clusters} for this shape, block_m and num_sms")

    @classmethod
    def tiles_of(cls, problem: Problem) -> tuple[int, ...]:
        return PACKED_BLOCK_M if problem.formats.decodes else BLOCK_M

    siblings = property(lambda self: [self.replace(cluster=n) for n in cluster_sizes(self.problem, self.block_m, self.num_sms)])

    @property
    def swap_ab(self) -> bool:
        """Whether tokens are the wgmma's columns: for few tokens, and with packed weights, which then are decoded as rows
        (docs/lab/hopper.md)."""
        return self.block_m <= (PACKED_COLUMNS if self.packed else MOST_COLUMNS)

    # whether packed weights are decoded into shared memory by warps of their own, and CTAs of a cluster each decode half for both
    decoded = property(lambda self: self.packed and not self.swap_ab)
    halves_decoding = property(lambda self: self.decoded and self.cluster > 1)

    @property
    def part_tokens(self) -> int:
        """Tokens of a part of the tile.  As the wgmma's rows each warpgroup can have a part of them; as its columns they are one part."""
        return self.block_m if self.swap_ab else self.block_m // MATH_WARPGROUPS

    def sf_row(self, pool_block: Int, row_in_block: Int) -> Int:
        return self.first_row(pool_block) + row_in_block

    # --- threads and registers
    @property
    def warps(self) -> PerRole:
        """Where a warpgroup decodes, half as many dispatch, and each loader does two things, so that a CTA has no more threads."""
        math = WARPS_PER_GROUP * MATH_WARPGROUPS
        if self.decoded:
            return PerRole(DISPATCH_WARPS // 2, LOADER_WARPS // 2, math, WARPS_PER_GROUP)
        return PerRole(DISPATCH_WARPS, LOADER_WARPS, math)

    registers = property(lambda self: DECODE_REGISTERS if self.decoded else REGISTERS)

    # --- tiles
    @property
    def block_k(self) -> int:
        """Channels of a stage, whose rows are 128 bytes of activations."""
        return BLOCK_K * 8 // self.problem.formats.activations.element_bits

    @property
    def facts(self) -> list[tuple[str, object]]:
        columns = "tokens" if self.swap_ab else "weight rows"
        tile = f"256 weight rows x {self.block_m} tokens x {self.block_k} channels; {columns} are the wgmma's columns"
        return [("tile", tile), ("epilogue", f"{self.epilogue_warps} warps, which also issue the wgmmas")]

    fc2_parts = MegaMoeConfig.fc1_n_blocks  # one per Linear1 tile, of 128 intermediate channels

    # --- bytes: a token; weights that TMA fetches for a stage (256 rows of 128, or a packed tile), and their rows of 128
    token_bytes = property(lambda self: self.problem.formats.activations.row_bytes(self.problem.hidden))
    fetched_weight_bytes = property(lambda self: TILE_BYTES if self.packed else TILE_ROWS * BLOCK_K)
    weight_lines = property(lambda self: self.fetched_weight_bytes // BLOCK_K)
    # weights of a stage (as fetched, or decoded to E4M3 [256][BLOCK_K]), and FP32 scales of its tokens
    weight_bytes = property(lambda self: TILE_ROWS * BLOCK_K if self.decoded else self.fetched_weight_bytes)
    scale_bytes = property(lambda self: 4 * self.block_m if self.scaled else 0)

    def token_transaction(self, tokens: Int) -> Int:
        """Bytes TMA counts for a stage's first `tokens` tokens, and all scales."""
        return tokens * BLOCK_K + self.scale_bytes

    @property
    def fc1_boxes(self) -> int:
        """Boxes of 128 bytes a token in which the store warp stores a Linear1 tile; none where a tile takes more of SMEM than Linear2's,
        and math warps store it."""
        boxes = self.problem.formats.hidden.row_bytes(FC1_OUTPUTS) // BLOCK_K
        return boxes if boxes == 1 or self.swap_ab else 0

    def fc1_box(self, index: Int) -> Int:
        """Bytes from the beginning of `cd` to a box of a Linear1 tile."""
        return index * (self.block_m * BLOCK_K)

    @property
    def fc2_tile_bytes(self) -> int:
        """With tokens as columns, BF16 [tokens][128] of a warpgroup as two halves of 128-byte rows, up to `MOST_COLUMNS` tokens at a time;
        as rows, 64 tokens' 64 channels."""
        return min(self.block_m, MOST_COLUMNS) * 256 if self.swap_ab else self.block_m * 64

    @cached_property
    def smem(self) -> SmemPlan:
        """With as many pull slots as fit beside the ring and as a row has chunks."""
        chunks = len(row_chunks(self.token_bytes, pull_chunk(self.token_bytes)))
        fitting = (self.smem_plan(self.num_stages, n) for n in PULL_SLOTS if n <= chunks)
        return next((p for p in fitting if p.region.size <= self.arch.smem_bytes), None) or self.smem_plan(self.num_stages, 1)

    # --- the layer in a launch per stage
    def of_stage(self, linear: bool) -> Self:
        """Where the fused kernel has warps that decode, math warps decode smaller tiles."""
        tile = {"block_m": PACKED_COLUMNS, "cluster": 1} if self.decoded else {"cluster": self.cluster if linear else 1}
        return self.replace(**tile, lookahead=self.problem.experts_per_rank, num_stages=0, trace=False)
