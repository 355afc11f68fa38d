"""Tensor memory of a CTA: 512 columns of 128 lanes x 32 bits (SM100_FACTS, TMEM)."""

from __future__ import annotations

from dataclasses import dataclass

from ...hardware.cta_pair import SMALLEST_ALLOCATION, TMEM_COLUMNS, TMEM_LANES, TmemField
from ...layouts.arith import Int

ACCUMULATORS = 2  # the MMA warp fills one while the other is read


@dataclass(frozen=True)
class Sm100TmemPlan:
    """Columns: accumulators [0, accumulators * consumers * block_m), token scales (4 per 128 rows), weight scales (4 for each consumer);
    no scales where operands have none.

    consumers     sums of a tile that share its tokens: of 128 weight rows of the CTA each, one after another
    accumulators  tiles that have columns at a time
    scaled        whether operands have scales
    """

    block_m: int
    consumers: int = 1
    accumulators: int = ACCUMULATORS
    scaled: bool = True

    def accumulator(self, index: Int) -> Int:
        return index * (self.consumers * self.block_m)

    @property
    def sfa(self) -> int:
        return self.accumulators * self.consumers * self.block_m

    @property
    def sfa_columns(self) -> int:
        return 4 * -(-self.block_m // TMEM_LANES) if self.scaled else 0

    @property
    def sfb(self) -> int:
        return self.sfa + self.sfa_columns

    @property
    def used(self) -> int:
        return self.sfb + self.sfb_columns

    @property
    def sfb_columns(self) -> int:
        return 4 * self.consumers if self.scaled else 0

    @property
    def fits(self) -> bool:
        return self.used <= TMEM_COLUMNS

    @property
    def allocated(self) -> int:
        """A power of two from 32 to 512 (PTX ISA, tcgen05.alloc)."""
        if not self.fits:
            raise ValueError(f"block_m = {self.block_m}: needs {self.used} TMEM columns, at most {TMEM_COLUMNS} exist")
        return max(SMALLEST_ALLOCATION, 1 << (self.used - 1).bit_length())

    @property
    def fields(self) -> list[TmemField]:
        width = self.consumers * self.block_m
        accumulators = [TmemField(f"accumulator {i}", i * width, width) for i in range(self.accumulators)]
        scales = TmemField("token scales", self.sfa, self.sfa_columns), TmemField("weight scales", self.sfb, self.sfb_columns)
        return [*accumulators, *(scales if self.scaled else ())]
