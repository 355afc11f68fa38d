"""Shared memory of one CTA (article 3.2.1.4): what is live while tiles are computed, what replaces it during combine, what stays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

from ....hardware.operand_tile import OPERAND_ALIGNMENT
from ....layouts.arith import ceil_div
from ....layouts.region import U8, U32, U64, Field, MBarrier, Region
from .combine_plan import CombinePlan


@dataclass(frozen=True)
class SmemPlan(ABC):
    """Byte plan of a CTA's SMEM with a ring of `num_stages`; `region` has every field.

    main     the TMA ring (weights, tokens, scales), epilogue staging, pull slots, expert_count u32[E]
    combine  per epilogue warp its slots (combine_plan.py); takes the place of `main`
    tail     scale exchange, per-expert table, work tiles (four words each), mbarriers, and what the architecture adds: always live

    pull_slots  chunks of a row that a dispatch warp holds at a time
    """

    work_tiles: ClassVar[int]
    """Places of the queue of tiles (device/ring.py)."""

    config: Any
    num_stages: int
    pull_slots: int = 1

    # --- what differs
    @property
    @abstractmethod
    def tile_fields(self) -> tuple[Field, ...]:
        """The ring of operands and scales, and `cd`, where epilogues put their tiles together."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of a stage's weights."""

    @property
    @abstractmethod
    def maxima(self) -> Field:
        """amax: what warps that share a scale exchange."""

    @property
    @abstractmethod
    def pull_chunk(self) -> int:
        """Bytes of a token row that one bulk copy moves."""

    @cached_property
    @abstractmethod
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order."""

    @property
    def before_barriers(self) -> tuple[Field, ...]:
        """Fields that the architecture adds to the tail, before the mbarriers and the queue of tiles."""
        return ()

    @property
    def after_barriers(self) -> tuple[Field, ...]:
        """Fields that come after the mbarriers.  trace_count: stamps so far of each traced warp."""
        return (Field("trace_count", (self.config.num_threads // 32 if self.config.trace else 0,), U32),)

    # --- what is the same
    @property
    def combine(self) -> CombinePlan:
        """Slots of the epilogue warps while they combine."""
        problem = self.config.problem
        return CombinePlan(problem.hidden, problem.topk, self.config.epilogue_warps, problem.formats.combine)

    @cached_property
    def region(self) -> Region:
        """All fields: main and combine in the same place, then tail."""
        main = Region.stack("main", *self.tile_fields, *self.dispatch_fields)
        combine = Region.stack("combine", self.combine_slots)
        tables = (self.expert_table, *self.before_barriers, self.work_tile_words)
        tail = Region.stack("tail", self.maxima, *tables, *fields_of(self.barriers), *self.after_barriers)
        return Region.stack("smem", Region.overlay("phase", main=main, combine=combine), tail)

    def operand(self, name: str, num_bytes: int) -> Field:
        """A field of the ring that TMA and tensor cores share."""
        return Field(name, (self.num_stages, num_bytes), U8, OPERAND_ALIGNMENT)

    @property
    def dispatch_fields(self) -> tuple[Field, ...]:
        """Slots of a row for each warp that pulls, and counts of tokens."""
        pull = Field("pull", (self.config.dispatch_warps, self.pull_slots, self.pull_chunk), U8, 128)
        return (pull, Field("expert_count", (self.config.problem.num_experts,), U32))

    @property
    def combine_slots(self) -> Field:
        return Field("combine_slots", (self.config.epilogue_warps, self.combine.slots, self.combine.slot_bytes), U8, 128)

    @property
    def expert_table(self) -> Field:
        """Tokens and first pool block of every local expert, and an entry more."""
        return Field("expert_table", (self.config.problem.experts_per_rank + 1, 2), U32, 8)

    @property
    def work_tile_words(self) -> Field:
        """Four words per place of the queue of tiles."""
        return Field("work_tiles", (self.work_tiles, 4), U32, 16)

    @property
    def num_bytes(self) -> int:
        return self.region.size

    def max_stages(self, capacity: int) -> int:
        """Stages of the deepest ring within `capacity` bytes; 0 when not one fits."""
        return deepest_ring(self, capacity)

    def with_stages(self, num_stages: int) -> Self:
        """The plan with a ring of another depth."""
        return replace(self, num_stages=num_stages)


def fields_of(barriers: Iterable[MBarrier]) -> tuple[Field, ...]:
    """The words of mbarriers, in the order of the table."""
    return tuple(Field(f"{row.name}_barrier", (row.count,), U64) for row in barriers)


@lru_cache
def deepest_ring(plan: Any, capacity: int) -> int:
    """Stages of the deepest ring of a plan within `capacity` bytes.  Cached, because a preset asks for every number of tokens and there are
    few plans."""
    stages = 0
    while plan.with_stages(stages + 1).num_bytes <= capacity:
        stages += 1
    return stages


@dataclass(frozen=True)
class RowChunks:
    """A row of `num_bytes` in chunks of `chunk` bytes, both multiples of 16."""

    num_bytes: int
    chunk: int

    @property
    def count(self) -> int:
        return ceil_div(self.num_bytes, self.chunk)

    def start(self, index: int) -> int:
        """Byte of the row that a chunk begins with."""
        return index * self.chunk

    def size(self, index: int) -> int:
        return min(self.chunk, self.num_bytes - self.start(index))
