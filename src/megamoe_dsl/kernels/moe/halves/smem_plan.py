"""Shared memory of one CTA: that of its GEMM, and what the communication warps add."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ....layouts.region import U8, U32, U64, Field, MBarrier, Region
from ..layouts.smem_plan import CombinePlan

COMMUNICATION_WARPS = 4
WARP = "the communication warp"


@dataclass(frozen=True)
class EpSmemPlan:
    """`region` has every field, those of the GEMM first, at the same offsets as there."""

    gemm: Any
    slots: Field  # where communication warps have what is on its way: of dispatch, chunks of a token row
    slot_barrier: MBarrier  # what says that it is there
    combine: CombinePlan | None = None  # how slots of combine hold the results of a piece of a token, and their sum
    trace_warps: int = 0  # warps that leave stamps

    @classmethod
    def of_dispatch(cls, gemm: Any, slots: int, chunk: int) -> EpSmemPlan:
        """With so many slots for each warp, of a chunk of so many bytes."""
        barrier = MBarrier("pull", COMMUNICATION_WARPS * slots, 1, WARP, "one chunk of a token row", WARP)
        return cls(gemm, Field("pull", (COMMUNICATION_WARPS, slots, chunk), U8, 128), barrier)

    @classmethod
    def of_combine(cls, gemm: Any, combine: CombinePlan) -> EpSmemPlan:
        """With a barrier for each set of slots."""
        barrier = MBarrier("combine", combine.warps * combine.sets, 1, WARP, "one piece of a token's top-k results", WARP)
        return cls(gemm, combine.field, barrier, combine)

    @property
    def pull_slots(self) -> int:
        return self.slots.shape[1]

    @property
    def pull_chunk(self) -> int:
        return self.slots.shape[2]

    @property
    def barriers(self) -> tuple[MBarrier, ...]:
        return (*self.gemm.barriers, self.slot_barrier)

    @property
    def num_bytes(self) -> int:
        return self.region.size

    @cached_property
    def region(self) -> Region:
        """epoch: launches before this one; trace_count: stamps so far of each traced warp."""
        barrier = Field(f"{self.slot_barrier.name}_barrier", (self.slot_barrier.count,), U64)
        words = Field("epoch", (1,), U32), barrier, Field("trace_count", (self.trace_warps,), U32)
        return Region.stack("smem", self.gemm.region, self.slots, *words)
