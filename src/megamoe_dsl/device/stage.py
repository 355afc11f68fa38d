"""A stage of a ring in shared memory, for the warps that fill it and those that read it: its addresses, its two mbarriers, and the next
stage.

Main loops and loaders (blocks/) take a `Stage` and no kernel's context.  A kernel's SMEM plan is a `Region`; blocks expect these fields,
each with the stage as its first index:

| field         | what it holds |
|---|---|
| tokens        | rows of the activations, K-major, swizzled over a row's width |
| weights       | rows of the weights, likewise |
| sfa, sfb      | scales of the tokens and of the weights that come with the stage |
| full_barrier  | mbarrier: the operands are there; loaders arrive and expect bytes |
| empty_barrier | mbarrier: everyone has read them |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..layouts.region import Region
from .cluster import in_cta
from .mbarrier import arrive, arrive_cluster, wait
from .ring import Ring

SCALE_BYTES = 4


@dataclass(frozen=True)
class Stage:
    """The stage at a ring's position.

    plan     the CTA's shared memory
    smem     shared address of the plan
    cluster  CTAs whose loaders write into one another's stages: a loader then waits until the warps of all these CTAs have read the stage
    """

    plan: cutlass.Constexpr[Region]
    cluster: cutlass.Constexpr[int]
    smem: Int32
    ring: Ring

    @staticmethod
    def first(plan: Region, smem: Any, depth: int, cluster: int = 1) -> Stage:
        return Stage(plan, cluster, smem, Ring.start(depth))

    def next(self) -> Self:
        """The stage after it in the ring."""
        return replace(self, ring=self.ring.next())

    def previous(self) -> Stage:
        """The stage before it, for its addresses."""
        return replace(self, ring=self.ring.previous())

    def shared(self, name: str) -> Any:
        """Shared address of a field of the plan, in this stage."""
        return self.plan.address(self.smem, name, self.ring.index)

    @property
    def full(self) -> Any:
        """Shared address of the mbarrier that says that the stage is loaded."""
        return self.shared("full_barrier")

    @property
    def empty(self) -> Any:
        """Shared address of the mbarrier that says that the stage is free."""
        return self.shared("empty_barrier")

    @property
    def token_scales(self) -> Any:
        """Shared address of the scales of the tile's tokens."""
        return self.shared("sfa")

    @property
    def scale_step(self) -> int:
        """Bytes from a token's scale to the next one's."""
        return SCALE_BYTES

    @property
    def scales_in_pairs(self) -> bool:
        """Whether those of two tokens, the first of which is even, lie at a multiple of 8 bytes."""
        return True

    def reader_releases(self, lane: Any) -> Any:
        """The CTA of the cluster whose stage a lane of a reader gives back, below as many lanes as there are CTAs."""
        return lane

    def wait_full(self) -> None:
        """A reader: until the stage is loaded."""
        wait(self.full, self.ring.phase)

    def wait_empty(self) -> None:
        """A loader: until the stage is free."""
        wait(self.empty, self.ring.phase ^ 1)


@cute.jit
def release_stage(stage: Stage, lane: Int32):
    """Tells the loaders of every CTA that may write the stage that this warp has read it."""
    if cutlass.const_expr(stage.cluster > 1):
        if lane < stage.cluster:
            arrive_cluster(in_cta(stage.empty, stage.reader_releases(lane)))
    elif lane == 0:
        arrive(stage.empty)
