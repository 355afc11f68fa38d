"""Shared memory of one CTA of a GEMM whose B is decoded by warps of its own: a ring of packed tiles in front of that of operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from ....hardware.operand_tile import BLOCK_K, OPERAND_ALIGNMENT
from ....layouts.mbarrier import MBarrier
from ....layouts.region import F32, U8, U32, Field
from ..barriers import LOADERS
from ..tile import WARPS_PER_GROUP
from .smem_plan import DecodingSmemPlan


@dataclass(frozen=True)
class DecodedSmemPlan(DecodingSmemPlan):
    """A stage's weights are E4M3 [n][BLOCK_K] that decode warps write; both rings have one depth."""

    decode_warps: ClassVar[int] = WARPS_PER_GROUP

    @property
    def weight_bytes(self) -> int:
        return self.tile.n * BLOCK_K

    @property
    def more_operands(self) -> tuple[Field, ...]:
        """codes: of packed tiles, before they are decoded.  row_exponents: UE8M0 of four rows a word, as in the records.  sfb: the tile's
        scale."""
        stages = self.num_stages
        return (
            Field("codes", (stages, self.part.num_bytes), U8, OPERAND_ALIGNMENT),
            Field("row_exponents", (stages, self.part.rows // 4), U32, 16),
            Field("sfb", (stages,), F32),
        )

    @property
    def loaders(self) -> int:
        """Warps that read work tiles besides the math warps: loaders, and those that decode."""
        return LOADERS + self.decode_warps

    @property
    def loaded(self) -> int:
        """Arrivals that say that a stage is full: the token loader's, and one of every decode warp."""
        return 1 + self.decode_warps

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """Those of FP8, with decode warps in the place of the weight loader, and the ring's in front."""
        full, empty, *others = super().barriers
        return (
            replace(full, who="token loader and every decode warp", transaction="rows of A and their scales"),
            replace(empty, waits="token loader and decode warps"),
            MBarrier("codes_full", self.num_stages, 1, "weight loader", "a part of a packed tile", "decode warps"),
            MBarrier("codes_empty", self.num_stages, self.decode_warps, "every decode warp", "", "weight loader"),
            *others,
        )
