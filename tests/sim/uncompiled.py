"""What stands for `quick_check.c` where tests leave all to `race`: decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megamoe_dsl.sim.access_record import ALIKE, CODE_MASK, CODE_SHIFT, Records

Rows = NDArray[np.int32]


class Uncompiled:
    """What stands for the compiled functions: decides nothing."""

    def knows(self, *_: object) -> bool:
        return False

    def access(self, *_: object) -> bool:
        return False

    def read(self, *_: object) -> None: ...

    def pages(self, index: Records, shift: int) -> list[int]:
        return np.unique(index >> shift).tolist()

    def keep(self, some: NDArray[np.bool_], row: Records, first: int, index: Records, new: Records) -> None:
        here = (index >= first) & (index < first + len(row))
        index, new = index[here], new[here]
        before = row[index - first]
        several = some[index] & ((before ^ new) & CODE_MASK != 0) & (before != 0)
        row[index - first] = np.where(several, new & ~CODE_MASK | ALIKE << CODE_SHIFT, new)
        some[index] = True

    def locate(self, *_: object) -> None: ...

    def raise_to(self, clock: Rows, rows: Sequence[int], known: list[tuple[Records, int]]) -> None:
        for row in rows:
            for agents, when in known:
                clock[row, agents] = np.maximum(clock[row, agents], when)
