"""Shared memory of one CTA: that of a packed GEMM, with the loaders that gather rows, and the table of where rows begin in A."""

from __future__ import annotations

from dataclasses import dataclass

from ...layouts.region import U32, Field
from ..gemm.smem_plan import GemmSmemPlan


@dataclass(frozen=True)
class GatherSmemPlan(GemmSmemPlan):
    """`gather_warps` gather rows of A in the place of the token loader, each of whose threads arrives on its own; 0: TMA loads them.

    places_rows  whether rows begin elsewhere in A than in D
    trace_warps  warps that leave stamps
    """

    gather_warps: int
    places_rows: bool
    trace_warps: int = 0

    @property
    def loaders(self) -> int:
        """Warps that load operands."""
        return super().loaders - 1 + self.gather_warps if self.gather_warps else super().loaders

    @property
    def loaded(self) -> int:
        """Arrivals of theirs that say that a stage is full."""
        return super().loaded - 1 + 32 * self.gather_warps if self.gather_warps else super().loaded

    @property
    def tables(self) -> tuple[Field, ...]:
        """What says where rows of experts lie."""
        sources = (Field("source_rows", (self.groups,), U32, 4),) if self.places_rows else ()
        return (*super().tables, *sources, *trace_counts(self.trace_warps))


def trace_counts(warps: int) -> tuple[Field, ...]:
    """Stamps so far of each traced warp (device/stamps.py); nothing of none."""
    return (Field("trace_count", (warps,), U32),) if warps else ()
