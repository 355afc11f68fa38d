"""Tensor memory of a CTA: 512 columns of 128 lanes x 32 bits (SM100_FACTS, TMEM)."""

from __future__ import annotations

from dataclasses import dataclass

from ...hardware.tmem import SMALLEST_ALLOCATION, TMEM_COLUMNS, TMEM_LANES, TmemField

ACCUMULATORS = 2  # the MMA warp fills one while the other is read


@dataclass(frozen=True)
class Sm100TmemPlan:
    """Columns: two accumulators [0, 2 * block_m), token scales (4 columns per 128 rows), weight scales (4 columns)."""

    block_m: int

    def accumulator(self, index: int) -> int:
        """First column of an accumulator."""
        return index * self.block_m

    @property
    def sfa(self) -> int:
        """First column of the token scales."""
        return ACCUMULATORS * self.block_m

    @property
    def sfa_columns(self) -> int:
        """Columns of the token scales: 4 per 128 rows."""
        return 4 * -(-self.block_m // TMEM_LANES)

    @property
    def sfb(self) -> int:
        """First column of the weight scales."""
        return self.sfa + self.sfa_columns

    @property
    def used(self) -> int:
        """Columns in use."""
        return self.sfb + 4

    @property
    def allocated(self) -> int:
        """A power of two from 32 to 512 (PTX ISA, tcgen05.alloc)."""
        columns = max(SMALLEST_ALLOCATION, 1 << (self.used - 1).bit_length())
        if columns > TMEM_COLUMNS:
            raise ValueError(f"block_m = {self.block_m}: needs {self.used} TMEM columns, at most {TMEM_COLUMNS} exist")
        return columns

    @property
    def fields(self) -> list[TmemField]:
        """What the columns hold, in their order."""
        accumulators = [TmemField(f"accumulator {i}", self.accumulator(i), self.block_m) for i in range(ACCUMULATORS)]
        return [
            *accumulators,
            TmemField("token scales", self.sfa, self.sfa_columns),
            TmemField("weight scales", self.sfb, self.used - self.sfb),
        ]
