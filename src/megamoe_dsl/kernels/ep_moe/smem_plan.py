"""Shared memory of one CTA: that of its GEMM, and what the communication warps add."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...layouts.mbarrier import MBarrier
from ...layouts.region import U8, U32, U64, Field, Region
from ..gemm.smem_plan import GemmSmemPlan
from .barriers import barrier_table

COMMUNICATION_WARPS = 4
TASKS = 2  # handed out to a CTA that not all of its communication warps have read


@dataclass(frozen=True)
class EpSmemPlan:
    """Byte plan of a CTA's SMEM; `region` has every field, those of the GEMM first, at the same offsets as there.

    pull_chunk  bytes of a token row that one bulk copy moves
    pull_slots  chunks that a communication warp holds at a time
    """

    gemm: GemmSmemPlan
    pull_chunk: int
    pull_slots: int

    @cached_property
    def own_barriers(self) -> tuple[MBarrier, ...]:
        """Those of the communication warps."""
        return barrier_table(tasks=TASKS, warps=COMMUNICATION_WARPS, pull_slots=self.pull_slots)

    @property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers."""
        return (*self.gemm.barriers, *self.own_barriers)

    @property
    def num_bytes(self) -> int:
        """Of dynamic SMEM."""
        return self.region.size

    @cached_property
    def region(self) -> Region:
        """Everything."""
        return Region.stack(
            "smem",
            self.gemm.region,
            Field("pull", (COMMUNICATION_WARPS, self.pull_slots, self.pull_chunk), U8, 128),
            Field("tasks", (TASKS, 4), U32, 16),
            Field("epoch", (1,), U32),
            *(Field(f"{one.name}_barrier", (one.count,), U64) for one in self.own_barriers),
        )
