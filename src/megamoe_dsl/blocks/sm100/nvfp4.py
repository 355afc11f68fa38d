"""Linear1's outputs of a pass in NVFP4, E2M1 with a UE4M3 scale for each row and 16 channels, and a known factor.

The 16 channels of a warp are those of a scale, so that no two warps exchange maxima.  A scale takes divisions: a lane finds that of one row
of the 32, and the lanes that have the row's values ask it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...device.cast import abs_max
from ...device.warp import shuffle_f32, shuffle_xor_f32
from ...layouts.arith import select
from ...recipe import E2M1
from ..quantize import divided, ue4m3_scale
from .results import OUTPUTS

COLUMNS = 4  # lanes with other rows; the eight with the same column have other channels of the same rows


@dataclass(frozen=True)
class GateUpFactors:
    """The factors of an expert, FP32: `gate` and `up` multiply its sums, and `hidden` is that of the E2M1 rows they become."""

    gate: Any
    up: Any
    hidden: Any

    def of_sums(self, sums: Sequence[Any], gates: int = 0) -> list[Any]:
        """Each of a thread's, rounded once; `gates` as of `activate_channels`."""
        return [value * (self.gate if i & 2 == gates else self.up) for i, value in enumerate(sums)]

    def scale(self, passed: Sequence[Sequence[Any]], lane: Any) -> tuple[Any, Any]:
        """The scale of `row_of_lane`, as a byte, and what its values are divided by; `passed` are a thread's, activated, of all groups."""
        peaks = [abs_max(values[q], values[2 + q]) for values in passed for q in range(2)]
        return ue4m3_scale(largest_of_row(peaks, lane), self.hidden)


def packed_pass(passed: Sequence[Sequence[Any]], divisor: Any, lane: Any) -> list[Any]:
    """What the output tile takes of them; each lane has the divisor of its row."""
    packed = []
    for g, values in enumerate(passed):
        divisors = [shuffle_f32(divisor, (2 * g + q) * COLUMNS + (lane & (COLUMNS - 1))) for q in range(2)]
        packed.append(OUTPUTS[E2M1].pack([divided(value, divisors[i & 1]) for i, value in enumerate(values)]))
    return packed


def row_of_lane(lane: Any) -> Any:
    """A lane finds the scale of this row of a pass: bits 4 and 3 select eight rows, bits 1 and 0 two of these, and bit 2 one of the two."""
    return (lane >> 3) * 8 + (lane & (COLUMNS - 1)) * 2 + ((lane >> 2) & 1)


def largest_of_row(peaks: Sequence[Any], lane: Any) -> Any:
    """The largest magnitude of `row_of_lane`: of its eight rows' maxima a lane sends half to another lane of its column, which keeps those,
    then half of what is left, until it has one of all."""
    left, distance = list(peaks), len(peaks) // 2 * COLUMNS
    while distance >= COLUMNS:
        half, upper = len(left) // 2, (lane & distance) != 0
        kept = [select(upper, left[half + i], left[i]) for i in range(half)]
        sent = [select(upper, left[i], left[half + i]) for i in range(half)]
        left = [abs_max(mine, shuffle_xor_f32(other, distance)) for mine, other in zip(kept, sent, strict=True)]
        distance //= 2
    return left[0]
