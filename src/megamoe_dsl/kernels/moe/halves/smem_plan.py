"""Shared memory of one CTA: that of its GEMM, and what the communication warps add."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

from ....blocks.gemm.smem_plan import GemmSmemPlan, PairGemmSmemPlan
from ....layouts.region import U8, U32, U64, Field, MBarrier, Region
from ..layouts.smem_plan import CombinePlan

COMMUNICATION_WARPS = 4
WARP = "the communication warp"


@dataclass(frozen=True)
class EpSmemPlan(ABC):
    """Byte plan of a CTA's SMEM; `region` has every field, those of the GEMM first, at the same offsets as there.  trace_warps: warps
    that leave stamps."""

    gemm: GemmSmemPlan | PairGemmSmemPlan
    trace_warps: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def slots(self) -> Field:
        """Where communication warps have what is on its way."""

    @property
    @abstractmethod
    def slot_barrier(self) -> MBarrier:
        """What says that it is there."""

    @property
    def barriers(self) -> tuple[MBarrier, ...]:
        return (*self.gemm.barriers, self.slot_barrier)

    @property
    def num_bytes(self) -> int:
        return self.region.size

    @cached_property
    def region(self) -> Region:
        """Everything; epoch: launches before this one; trace_count: stamps so far of each traced warp."""
        return Region.stack(
            "smem",
            self.gemm.region,
            self.slots,
            Field("epoch", (1,), U32),
            Field(f"{self.slot_barrier.name}_barrier", (self.slot_barrier.count,), U64),
            Field("trace_count", (self.trace_warps,), U32),
        )


@dataclass(frozen=True)
class DispatchPlan(EpSmemPlan):
    """pull_chunk: bytes of a token row that one bulk copy moves; pull_slots: chunks that a communication warp holds at a time."""

    pull_chunk: int
    pull_slots: int

    @property
    def slots(self) -> Field:
        return Field("pull", (COMMUNICATION_WARPS, self.pull_slots, self.pull_chunk), U8, 128)

    @property
    def slot_barrier(self) -> MBarrier:
        return MBarrier("pull", COMMUNICATION_WARPS * self.pull_slots, 1, WARP, "one chunk of a token row", WARP)


@dataclass(frozen=True)
class CombineSmemPlan(EpSmemPlan):
    """combine: how a warp's slots hold the results of a piece of a token, and their sum."""

    combine: CombinePlan

    @property
    def slots(self) -> Field:
        return Field("combine_slots", (COMMUNICATION_WARPS, self.combine.slots, self.combine.slot_bytes), U8, 128)

    @property
    def slot_barrier(self) -> MBarrier:
        """One for each set of slots."""
        return MBarrier("combine", COMMUNICATION_WARPS * self.combine.sets, 1, WARP, "one piece of a token's top-k results", WARP)
