"""Shared memory of one CTA: that of a packed GEMM, with the loaders that gather rows, and the table of where rows begin in A."""

from __future__ import annotations

from dataclasses import dataclass

from ....layouts.region import F32, U32, Field
from ..smem_plan import GemmSmemPlan


@dataclass(frozen=True)
class GatherSmemPlan(GemmSmemPlan):
    """`gather_warps` gather rows of A in the place of the token loader, each of whose threads arrives on its own; 0: TMA loads them.

    places_rows  whether rows begin elsewhere in A than in D
    scales_at_once  K blocks of which a row's scales lie together, in a ring of their own
    trace_warps  warps that leave stamps
    """

    gather_warps: int
    places_rows: bool
    scales_at_once: int
    trace_warps: int = 0

    @property
    def loaders(self) -> int:
        return super().loaders - 1 + self.gather_warps if self.gather_warps else super().loaders

    @property
    def loaded(self) -> int:
        """Arrivals of theirs that say that a stage is full."""
        return super().loaded - 1 + 32 * self.gather_warps if self.gather_warps else super().loaded

    @property
    def scale_places(self) -> int:
        """Of the ring of scales, a power of two.  Who copies K block b has waited until b - `num_stages` was read; a place that begins at
        b held those of K blocks up to b - `scales_at_once` * (`scale_places` - 1) - 1."""
        needed = -(-(self.num_stages + self.scales_at_once - 1) // self.scales_at_once)
        return 1 << (needed - 1).bit_length()

    @property
    def token_scales(self) -> Field:
        """Of one K block with its stage, of several in places that no stage owns: they are read after the first of their stages is free."""
        if self.scales_at_once == 1:
            return super().token_scales
        return Field("sfa", (self.scale_places, self.scale_rows * self.scales_at_once), F32, 128)

    @property
    def tables(self) -> tuple[Field, ...]:
        """What says where rows of experts lie."""
        sources = (Field("source_rows", (self.groups,), U32, 4),) if self.places_rows else ()
        return (*super().tables, *sources, *trace_counts(self.trace_warps))


def trace_counts(warps: int) -> tuple[Field, ...]:
    """Stamps so far of each traced warp (device/stamps.py); nothing of none."""
    return (Field("trace_count", (warps,), U32),) if warps else ()
