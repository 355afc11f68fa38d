"""Shared memory of one CTA on SM90: tiles whose accumulators live in registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ....hardware.operand_tile import BLOCK_K, OPERAND_ALIGNMENT
from ....hardware.packed_tile import ENTRY_BYTES, SHIFTS, TILE_BYTES
from ....layouts.arith import Int, align
from ....layouts.mbarrier import MBarrier
from ....layouts.region import F32, U8, U32, Field
from ..layouts.smem_plan import SmemPlan
from ..layouts.tile import DISPATCH_WARPS, LOADER_WARPS, TILE_ROWS, WARPS_PER_GROUP

MATH_WARPGROUPS = 2
MOST_COLUMNS = 32  # tokens as columns whose BF16 rows are transposed at a time, and the most of them but for packed weights
PULL_CHUNK = 1024
PULL_SLOTS = (4, 2)  # per dispatch warp; the first that fits beside the ring


def most_columns(packed: bool) -> int:
    """Tokens of the largest tile that has them as the wgmma's columns; with more of them `packed` weights are decoded first."""
    return 64 if packed else MOST_COLUMNS


def warps_beside(warps: int, decoded: bool) -> int:
    """Of dispatch or of loaders: half as many where a warpgroup decodes, so that both are one warpgroup together and a CTA has no more
    threads."""
    return warps // 2 if decoded else warps


def pull_chunk(hidden: int) -> int:
    """Bytes of a token row that one bulk copy moves: the largest divisor of `hidden` up to 1024 that is a multiple of 128.  Where `hidden`
    is no multiple of 256, 1024, and a row's last copy moves what is left."""
    if hidden % 256:
        return min(hidden, PULL_CHUNK)
    return next(n for n in range(PULL_CHUNK, 0, -128) if hidden % n == 0)


@dataclass(frozen=True)
class Sm90SmemPlan(SmemPlan):
    """Adds to what is always live: for each of `trace_warps` warps the number of stamps it has left so far; if the
    weights are `packed`, and stay E2M1, the table of decoded values.  `store_warps` store tiles of Linear1: none in a stage of its own."""

    work_tiles: ClassVar[int] = 1

    cluster: int = 1
    pull_slots: int = PULL_SLOTS[-1]
    trace_warps: int = 0
    packed: bool = False
    store_warps: int = 1

    @property
    def epilogue_warps(self) -> int:
        return WARPS_PER_GROUP * MATH_WARPGROUPS

    @property
    def dispatch_warps(self) -> int:
        return warps_beside(DISPATCH_WARPS, self.decoded)

    @property
    def loader_warps(self) -> int:
        """Warps between those and the math warps."""
        return warps_beside(LOADER_WARPS, self.decoded)

    @property
    def swap_ab(self) -> bool:
        """Whether tokens are the wgmma's columns."""
        return self.block_m <= most_columns(self.packed)

    @property
    def decoded(self) -> bool:
        """Whether packed weights are decoded into the stages, once for all tokens of a tile."""
        return self.packed and not self.swap_ab

    @property
    def fetched_weight_bytes(self) -> int:
        """That TMA brings for a stage: E4M3 [256][BLOCK_K], or a packed tile."""
        return TILE_BYTES if self.packed else TILE_ROWS * BLOCK_K

    @property
    def weight_bytes(self) -> int:
        """Bytes of a stage: what is fetched, or E4M3 [256][BLOCK_K] that it is decoded to."""
        return TILE_ROWS * BLOCK_K if self.decoded else self.fetched_weight_bytes

    @property
    def more_operands(self) -> tuple[Field, ...]:
        """codes: packed tiles before they are decoded.  row_exponents: UE8M0 of four rows a word, as in the tile's records.  sfb: the
        tile's scale."""
        if not self.decoded:
            return ()
        stages = self.num_stages
        return (
            Field("codes", (stages, TILE_BYTES), U8, OPERAND_ALIGNMENT),
            Field("row_exponents", (stages, TILE_ROWS // 4), U32, 16),
            Field("sfb", (stages,), F32),
        )

    @property
    def token_bytes(self) -> int:
        return self.block_m * BLOCK_K

    @property
    def scale_bytes(self) -> int:
        """One FP32 scale per token of the tile."""
        return 4 * self.block_m

    def token_transaction(self, tokens: Int) -> Int:
        """Bytes TMA counts for a stage's first `tokens` tokens, and all scales."""
        return tokens * BLOCK_K + self.scale_bytes

    @property
    def pull_chunk(self) -> int:
        """Bytes of a token row that one bulk copy moves."""
        return pull_chunk(self.hidden)

    @property
    def fc2_tile_bytes(self) -> int:
        """With tokens as columns, BF16 [tokens][128] of a warpgroup as two halves of 128-byte rows, up to `MOST_COLUMNS` tokens at a time;
        as rows, 64 tokens' 64 channels."""
        return min(self.block_m, MOST_COLUMNS) * 256 if self.swap_ab else self.block_m * 64

    @property
    def staging(self) -> Field:
        """Linear1: E4M3 [block_m][128]; Linear2: one tile per warpgroup."""
        size = align(max(self.block_m * 128, MATH_WARPGROUPS * self.fc2_tile_bytes), OPERAND_ALIGNMENT)
        return Field("cd", (size,), U8, OPERAND_ALIGNMENT)

    @property
    def scales(self) -> tuple[Field, ...]:
        """sfa: of the tokens; those of the weights do not pass through the ring."""
        return (Field("sfa", (self.num_stages, align(self.scale_bytes, 128) // 4), F32, 128),)

    @property
    def maxima(self) -> Field:
        """amax: one word per math warp and token, or, where a ring of codes leaves less room, per token of the warp's 16."""
        return Field("amax", (self.epilogue_warps, 16 if self.decoded else self.block_m), U32, 16)

    @property
    def tile_readers(self) -> int:
        """Warps that read work tiles: all but dispatch and the one that deals them."""
        return self.loader_warps - 2 + self.store_warps + self.epilogue_warps + self.decode_warps

    @property
    def decode_warps(self) -> int:
        """Warps that decode packed weights for the math warps."""
        return WARPS_PER_GROUP if self.decoded else 0

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order."""
        return sm90_barrier_table(
            num_stages=self.num_stages,
            work_tiles=self.work_tiles,
            dispatch_warps=self.dispatch_warps,
            pull_slots=self.pull_slots,
            math_warps=self.epilogue_warps,
            cluster=self.cluster,
            tile_readers=self.tile_readers,
            decode_warps=self.decode_warps,
        )

    @property
    def before_barriers(self) -> tuple[Field, ...]:
        """decoded: the table of packed weights (device/e2m1.py)."""
        return (Field("decoded", (SHIFTS, ENTRY_BYTES), U8, 16 * ENTRY_BYTES),) if self.packed else ()

    @property
    def after_barriers(self) -> tuple[Field, ...]:
        """trace_count: stamps so far of each traced warp."""
        return (Field("trace_count", (self.trace_warps,), U32),)


def sm90_barrier_table(
    *,
    num_stages: int,
    work_tiles: int,
    dispatch_warps: int,
    pull_slots: int,
    math_warps: int,
    cluster: int,
    tile_readers: int,
    decode_warps: int,
) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA on SM90, in SMEM order; `tile_readers` counts the warps that read work tiles."""
    # The first CTA's warp that deals tiles stores its tiles, too, where warps decode; that of another CTA reads them as all others do.
    readers = 32 * (tile_readers * cluster + (cluster - 1 if decode_warps else 0))
    operands = "operands and token scales, from either CTA"
    ring: tuple[MBarrier, ...]
    if decode_warps:
        ring = (
            MBarrier("full", num_stages, 1 + decode_warps, "token loader and every decode warp", operands, "math warps"),
            MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", "token loader and decode warps"),
            MBarrier("codes_full", num_stages, 1, "weight loader", "a packed tile", "decode warps"),
            MBarrier("codes_empty", num_stages, decode_warps, "every decode warp", "", "weight loader"),
        )
    else:
        ring = (
            MBarrier("full", num_stages, 2, "token loader and weight loader", operands, "math warps"),
            MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", "both loaders"),
        )
    return (
        *ring,
        MBarrier("store_full", 1, math_warps, "every math warp, per Linear1 tile", "", "store warp"),
        MBarrier("store_empty", 1, 1, "store warp, when the tile has been read", "", "math warps"),
        MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "scheduler warp, dispatch warps and math warps, once"),
        MBarrier("work_tile_full", work_tiles, 1, "the cluster's first scheduler warp", "the work tile", "all that work on tiles"),
        MBarrier(
            "work_tile_empty", work_tiles, readers, "every lane that reads work tiles, in the cluster", "", "scheduler warp", cluster > 1
        ),
        MBarrier("pull", dispatch_warps * pull_slots, 1, "the dispatch warp", "one chunk of a token row", "the dispatch warp"),
        MBarrier("combine", 2 * math_warps, 1, "the math warp", "one piece of a token's top-k results", "the math warp"),
    )
