"""Shared memory of one CTA (article 3.2.1.4): what is live while tiles are computed, what replaces it during combine, what stays.  Barriers
and counters that CTAs and ranks wait for in a launch of the fused layer or of a stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ....layouts.arith import Int, align, ceil_div, div, minimum, select
from ....layouts.records import Watched, WatchedWaits
from ....layouts.region import U8, U32, Field, MBarrier, Region, SharedPlan
from ....recipe import BF16, BITS, COMBINE, Format

TILE_ROWS = 256  # weight rows of a tile: a tcgen05 pair's M, or 128 for each of two warpgroups
WARPS_PER_GROUP = 4
DISPATCH_WARPS = 4
LOADER_WARPS = 4  # SM100: tokens, weights, MMA, scheduler; SM90: tokens, weights, store, scheduler


class NamedBarrier:
    """Numbers of `barrier.cta`; 0 stays free for the whole CTA."""

    DISPATCH = 1  # 128 dispatch threads
    DISPATCH_EPILOGUE = 2  # dispatch has pulled all, epilogue has passed BEFORE_COMBINE
    EPILOGUE_ALL = 3
    EPILOGUE_GROUP = 4  # and 5: one per epilogue warpgroup


ONE_REPORT = 1 << 32
"""In the high word of an expert's sum of counts: one more rank has reported."""


class RankBarrier(Watched):
    """Barriers of one launch; each has counters of its own, so they may overlap.  BEFORE_COMBINE joins all CTAs of all ranks.  At
    BEFORE_PULL only SM 0 waits, for the CTAs of its rank, and when tokens are few it does not (dispatch.py); what tells the other
    ranks to pull are the counts that SM 0 sends after it."""

    BEFORE_PULL = 0, "dispatch"
    BEFORE_COMBINE = 1, "combine"


class Wait(Watched):
    """Everything else in the kernel waits, directly or not, for one of these."""

    COUNTS = 1, "dispatch", "local expert"  # scheduler warp: token counts of a local expert from every rank
    FC1_ARRIVAL = 2, "Linear1", "pool block"  # token loader and epilogue: tokens of a pool block
    FC2_ARRIVAL = 3, "Linear2", "pool block"  # token loader: Linear1 output of a pool block
    GRID = 4, ""  # SM 0: all CTAs at a rank barrier
    RANK = 5, ""  # all CTAs: every rank at a rank barrier
    ROWS = 6, "dispatch", "pool block"  # dispatch, of a pool that is a ring: Linear2 of the block whose rows a token takes


WAITS = WatchedWaits(Wait, RankBarrier, "dispatch or combine", Wait.COUNTS)


VECTOR = 8  # channels: BF16 in 16 bytes
LANES = 32
LANE_VECTOR = VECTOR * LANES  # channels that the lanes of a warp hold with one 16-byte vector of BF16 each
LARGEST_CHUNK = 1024  # channels: 32 FP32 sums a lane; the smaller the pieces, the more warps share the work of few tokens
BUDGET = 212 * 1024  # bytes of a CTA, less than the tiles have taken there before
Y_BYTES = BITS[BF16] // 8


@dataclass(frozen=True)
class CombinePlan:
    """A warp sums a piece of `chunk` channels of one token at a time.  All its top-k results are loaded at once, into one of `sets` sets
    of slots: with two, the next piece loads while this one is summed.  A slot has the piece's values, and all scales of the token's
    result if the row has scales; the sum, BF16, takes as many slots as it needs.  All of it fits `budget` bytes."""

    row: CombineRow
    topk: int
    warps: int
    budget: int = BUDGET

    @cached_property
    def sets(self) -> int:
        """Sets of top-k slots that a warp has: two if there is room, else one."""
        return 2 if self._largest_chunk(2) else 1

    @cached_property
    def chunk(self) -> int:
        """Channels: the largest share of a row that fits, all of them equal but for the last where `hidden` is no multiple of 256."""
        return self._largest_chunk(self.sets) or LANE_VECTOR

    def _largest_chunk(self, sets: int) -> int:
        slot = self.budget // self.warps // (sets * self.topk + self.sum_slots)
        fits = (slot - self.row.scale_bytes) // self.row.value_bytes
        vectors = ceil_div(self.row.hidden, LANE_VECTOR)
        exact = self.row.hidden % LANE_VECTOR == 0
        shares = (ceil_div(vectors, n) * LANE_VECTOR for n in range(1, vectors + 1) if vectors % n == 0 or not exact)
        return next((c for c in shares if c <= min(fits, LARGEST_CHUNK)), 0)

    chunk_bytes = property(lambda self: Y_BYTES * self.chunk)
    part_bytes = property(lambda self: self.row.value_bytes * self.chunk)
    slot_bytes = property(lambda self: self.part_bytes + self.row.scale_bytes)
    pieces = property(lambda self: ceil_div(self.row.hidden, self.chunk))
    last_chunk = property(lambda self: self.row.hidden - (self.pieces - 1) * self.chunk)

    def channels(self, part: Int) -> Int:
        return self.chunk if self.last_chunk == self.chunk else select(part == self.pieces - 1, self.last_chunk, self.chunk)

    def place(self, lane: Int, vector: int, channels: Int) -> tuple[Int, int]:
        """(lane, vector) where a lane finds its vector in a slot that has so many channels of a piece; one that has none reads the last."""
        if self.last_chunk == self.chunk:
            return lane, vector
        return minimum(lane + vector * LANES, div(channels, VECTOR) - 1), 0

    sum_slots = property(lambda self: Y_BYTES // self.row.value_bytes)
    slots = property(lambda self: self.sets * self.topk + self.sum_slots)  # of a warp: those of the sets, then those of the sum
    field = property(lambda self: Field("combine_slots", (self.warps, self.slots, self.slot_bytes), U8, 128))


def vector_address(slot: Int, lane: Int, vector: int, value_bytes: int = 2) -> Int:
    """Address of a lane's vector in a slot with `value_bytes` per channel: the lane has channels [256 vector + 8 lane, + 8)."""
    return slot + lane * (value_bytes * VECTOR) + vector * (value_bytes * VECTOR * LANES)


LINE = 128  # bytes: a row with scales takes whole lines, so that the values of a tile, 128 bytes or 256, come in whole lines too
BULK = 16  # bytes: bulk copies move multiples


@dataclass(frozen=True)
class CombineRow:
    """`hidden` values, then, where the format has any, their scales, a byte each."""

    hidden: int
    format: Format = COMBINE[BF16]

    value_bytes = property(lambda self: self.format.element_bits // 8)
    scaled = property(lambda self: self.format.scale is not None)
    first_scale = property(lambda self: self.format.row_bytes(self.hidden))

    def holds(self, byte: Int) -> Any:
        """Whether this byte of a tile of Linear2, counted in the row, is one of the row's values: rows of weights that fill the last tile
        up give others.  Python's True where no tile has such."""
        return True if self.hidden % TILE_ROWS == 0 else byte < self.first_scale

    @property
    def scale_bytes(self) -> int:
        """Bytes of all scales, and what a bulk copy of them moves besides; 0 without scales."""
        return align(self.format.scales_of(self.hidden), BULK) if self.scaled else 0

    @property
    def num_bytes(self) -> int:
        """From one row to the next."""
        return align(self.first_scale + self.scale_bytes, LINE) if self.scaled else self.first_scale


@dataclass(frozen=True)
class SmemPlan(SharedPlan):
    """The plan of a kernel that pulls tokens or combines results; `combine` says how slots hold a piece of a token's results and sum."""

    combine: CombinePlan | None = None

    pull_slots = property(lambda self: self.region["pull"].field.shape[1])  # chunks of a row that a warp holds at a time
    pull_chunk = property(lambda self: self.region["pull"].field.shape[2])  # bytes of a row that one bulk copy moves


def layer_plan(
    config: Any,
    ring: tuple[Field, ...],
    pull: tuple[int, int],
    amax: Field,
    barriers: tuple[MBarrier, ...],
    work_tiles: tuple[int, int],
    before_tiles: tuple[Field, ...] = (),
    after_barriers: tuple[Field, ...] = (),
    keeps: tuple[str, ...] = (),
) -> SmemPlan:
    """Shared memory of the fused kernel, or of one of its stages, which has only the fields `keeps`, in that order.

    main     `ring` of operands, scales and epilogue staging; `pull` slots, of so many bytes, of every dispatch warp; expert_count u32[E]
    combine  slots of every epilogue warp (`CombinePlan`); takes the place of `main`
    tail     always live: maxima that warps which share a scale exchange; tokens and first pool block of each local expert, and an entry
             more; `work_tiles` (how many, and the lanes that read one), four words each; `barriers` of the ring and of accumulators, and
             those that both architectures have; stamps so far of each traced warp; what the architecture adds
    """
    problem = config.problem
    combine = CombinePlan(CombineRow(problem.hidden, problem.formats.combine), problem.topk, config.epilogue_warps)
    (tiles, readers), pulled = work_tiles, config.warps.dispatch * pull[0]
    barriers += (
        MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "scheduler, dispatch and epilogue warps, once"),
        MBarrier("work_tile_full", tiles, 1, "the cluster's first scheduler warp", "the work tile", "all warps that work on tiles"),
        MBarrier("work_tile_empty", tiles, readers, "every lane that reads it, in the cluster", "", "scheduler warp", config.cluster > 1),
        MBarrier("pull", pulled, 1, "the dispatch warp", "one chunk of a token row", "the dispatch warp"),
        MBarrier("combine", 2 * config.epilogue_warps, 1, "the epilogue warp", "one piece of a token's top-k results", "the epilogue warp"),
    )
    kept = tuple(row for row in barriers if not keeps or f"{row.name}_barrier" in keeps)
    main = (*ring, Field("pull", (config.warps.dispatch, *pull), U8, 128), Field("expert_count", (problem.num_experts,), U32))
    tail = (
        amax,
        Field("expert_table", (problem.experts_per_rank + 1, 2), U32, 8),
        *before_tiles,
        Field("work_tiles", (tiles, 4), U32, 16),
        *(row.field for row in kept),
        *after_barriers,
        Field("trace_count", (config.num_threads // 32 if config.trace else 0,), U32),
    )
    if keeps:
        fields = {one.name: one for one in (*main, combine.field, *tail)}
        return SmemPlan(Region.stack("smem", *(fields[name] for name in keeps if name in fields)), kept, combine)
    phases = {"main": Region.stack("main", *main), "combine": Region.stack("combine", combine.field)}
    return SmemPlan(Region.stack("smem", Region.overlay("phase", **phases), Region.stack("tail", *tail)), barriers, combine)


Place = tuple[int, int, int]
"""Of a tensor in global memory: address and two extents."""


def row_chunks(num_bytes: int, chunk: int) -> list[tuple[int, int]]:
    """(begin, bytes) of the bulk copies of up to `chunk` bytes that move a row; both numbers are multiples of 16."""
    return [(begin, min(chunk, num_bytes - begin)) for begin in range(0, num_bytes, chunk)]
