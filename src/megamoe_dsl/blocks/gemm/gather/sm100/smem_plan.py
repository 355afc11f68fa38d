"""Shared memory of one CTA of the SM100 kernel: that of a GEMM of pairs, lists of rows, and the table of where rows begin in A."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .....hardware.cta_pair import CLUSTER
from .....hardware.scale_factors import SF_ATOM_ROWS
from .....layouts.arith import align
from .....layouts.mbarrier import MBarrier
from .....layouts.region import U16, U32, Field
from .....schedule.tile_sums import LANES
from ...sm100.smem_plan import PairGemmSmemPlan
from ...tile import WARPS_PER_GROUP
from ..smem_plan import trace_counts
from .barriers import LISTS, gather_barriers
from .threads import GATHER_WARPS


@dataclass(frozen=True)
class PairGatherSmemPlan(PairGemmSmemPlan):
    """gathers      whether lists say which rows are a tile's
    places_rows  whether rows begin elsewhere in A than in D
    pairs        CTA pairs of a cluster
    trace_warps  warps that leave stamps
    activates    whether gate and up are activated: warps then exchange the maxima of rows
    copies       whether threads copy scales of rows
    """

    gathers: bool
    places_rows: bool
    activates: bool
    pairs: int = 1
    trace_warps: int = 0
    copies: bool = True

    @property
    def loaded(self) -> int:
        """Arrivals that say that a stage is full: of both CTAs' loaders, and of the odd CTA's announcing warp where there are scales."""
        return super().loaded + self.copies

    @property
    def reading_warps(self) -> int:
        """Of the cluster, which read work tiles: the odd CTA of a pair has an announcing warp where the even one multiplies and
        there are scales."""
        return self.pairs * (super().reading_warps + self.copies + CLUSTER * (GATHER_WARPS - 1 + self.gathers))

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order (barriers.py)."""
        return (*super().barriers, *gather_barriers(self.num_stages, self.gathers, self.copies))

    @property
    def tables(self) -> tuple[Field, ...]:
        """What says where rows of experts lie, and which rows are a tile's."""
        maxima = Field("amax", (self.epilogue_warpgroups, WARPS_PER_GROUP, self.pass_rows), U32, 16)
        lists = Field("rows", (LISTS, self.stage.sfa_atoms * SF_ATOM_ROWS), U32, 16)
        experts = align(self.groups - 1, LANES)
        sums = Field("tile_ends", (experts,), U16, 4), Field("run_ends", (experts // LANES,), U16, 4)
        sources = Field("source_rows", (self.groups,), U32, 4)
        return (
            *super().tables,
            *sums,
            *((maxima,) if self.activates else ()),
            *((sources,) if self.places_rows else ()),
            *((lists,) if self.gathers else ()),
            *trace_counts(self.trace_warps),
        )
