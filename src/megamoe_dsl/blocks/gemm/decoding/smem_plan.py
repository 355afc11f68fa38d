"""Shared memory of one CTA of a GEMM that decodes its weights."""

from __future__ import annotations

from dataclasses import dataclass

from ....hardware.packed_part import PackedPart
from ....hardware.packed_tile import ENTRY_BYTES, SHIFTS
from ....layouts.region import U8, Field
from ..smem_plan import GemmSmemPlan


@dataclass(frozen=True)
class DecodingSmemPlan(GemmSmemPlan):
    """Of a stage's weights codes and records; beside the ring the table of decoded values (device/e2m1.py)."""

    @property
    def part(self) -> PackedPart:
        return PackedPart(self.tile.n)

    @property
    def weight_bytes(self) -> int:
        return self.part.num_bytes

    @property
    def tables(self) -> tuple[Field, ...]:
        """decoded: E4M3 of the magnitudes, shift by shift."""
        return (*super().tables, Field("decoded", (SHIFTS, ENTRY_BYTES), U8, 16 * ENTRY_BYTES))
