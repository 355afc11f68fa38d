"""Lanes of a warp that know the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .clock import Clock
from .lane_codes import CODE_SHIFT, LAST, members


class Strand:
    """Lanes `bits` of a warp, which know the same."""

    __slots__ = ("bits", "clock")

    def __init__(self, bits: int, clock: Clock) -> None:
        self.bits, self.clock = bits, clock

    def has(self, records: NDArray[np.int64] | int) -> NDArray[np.bool_] | np.bool_:
        """Which accesses are of this strand's lanes alone."""
        codes = np.asarray(records) >> CODE_SHIFT & LAST
        return np.array([members(code) & ~self.bits == 0 for code in range(LAST + 1)])[codes]
