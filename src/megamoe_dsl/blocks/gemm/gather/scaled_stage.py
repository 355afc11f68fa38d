"""A stage whose scales come for several K blocks at once, and lie where no stage owns them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import cutlass
from cutlass import Int32

from ....device.memory import fence_async_shared
from ....device.ring import SCALE_BYTES, Stage
from ..context import GemmStage


@dataclass(frozen=True)
class ScaledStage(Stage):
    """A place of the ring of scales (rows.py, `scale_places`) has `at_once` words of each row of the tile, one for each K block.

    places  of that ring
    word    of the stage's K block, counted through all places; with one at once the scales are the stage's, and this does not count
    """

    at_once: cutlass.Constexpr[int]
    places: cutlass.Constexpr[int]
    word: Int32

    def next(self) -> Self:
        """The stage after it in the ring, of the next K block."""
        following = super().next()
        # A power of two, so that math warps need not compare.
        return replace(following, word=(self.word + 1) & (self.places * self.at_once - 1)) if self.at_once > 1 else following

    @property
    def word_in_place(self) -> Any:
        """0 where a place begins."""
        return self.word & (self.at_once - 1) if self.at_once > 1 else 0

    @property
    def scale_step(self) -> int:
        """Bytes from a row's scale to the next one's."""
        return SCALE_BYTES * self.at_once

    @property
    def token_scales(self) -> Any:
        """Shared address of the scale of the tile's first row."""
        if self.at_once == 1:
            return super().token_scales
        place = self.word >> (self.at_once.bit_length() - 1)
        return self.plan.address(self.smem, "sfa", place) + self.word_in_place * SCALE_BYTES


@dataclass(frozen=True)
class GatheredStage(ScaledStage, GemmStage):
    """A stage whose rows threads have written."""

    def wait_full(self) -> None:
        """A reader: until the stage is loaded, and the tensor core sees it."""
        super().wait_full()
        fence_async_shared()


def copied_stage(first: Stage, at_once: int, places: int) -> ScaledStage:
    """The ring's first stage, as those who gather fill it."""
    return ScaledStage(first.plan, first.cluster, first.smem, first.ring, at_once, places, Int32(0))


def gathered_stage(first: GemmStage, at_once: int, places: int) -> GatheredStage:
    """The same, as math warps read it."""
    of_stage: list[Any] = [*(getattr(first, one.name) for one in fields(first)), at_once, places, Int32(0)]
    return GatheredStage(*of_stage)
