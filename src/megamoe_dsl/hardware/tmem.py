"""Tensor memory of a CTA of SM100: 512 columns of 128 lanes x 32 bits (PTX ISA, Tensor Memory; SM100_FACTS, TMEM)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

TMEM_COLUMNS = 512
TMEM_LANES = 128
SMALLEST_ALLOCATION = 32  # columns


class TmemField(NamedTuple):
    """Columns [first, first + columns) of tensor memory."""

    name: str
    first: int
    columns: int


class TmemPlan(Protocol):
    """What a kernel keeps in tensor memory."""

    @property
    def fields(self) -> list[TmemField]:
        """The fields, in the order of their first columns."""

    @property
    def used(self) -> int:
        """Columns that the fields take."""

    @property
    def allocated(self) -> int:
        """Columns: a power of two from 32 to 512 (PTX ISA, tcgen05.alloc)."""
