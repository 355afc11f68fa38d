"""What most accesses are to the race detector: nothing to report, and a record to update. `quick_check.c` decides that.

Where it cannot be compiled, its functions know nothing, and `race` decides all by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .access_record import AGENT_MASK, ASYNC_BIT, CLOCK_SHIFT, HAPPENED, READS, Records
from .compiled import compiled
from .lane_codes import ALIKE, CODE_MASK, CODE_SHIFT

FIELDS = {
    "AGENT_MASK": AGENT_MASK, "ASYNC_BIT": ASYNC_BIT, "CLOCK_SHIFT": CLOCK_SHIFT, "HAPPENED": HAPPENED, "READS": READS,
    "CODE_MASK": CODE_MASK, "CODE_SHIFT": CODE_SHIFT, "ALIKE": ALIKE,
}  # fmt: skip
Rows = NDArray[np.int32]
Flags = NDArray[np.bool_] | None


class QuickCheck(Protocol):
    """The functions, compiled or not.

    `index` is a slice or int64; `rows` are a clock's, and `proxy` is one of them that must know of writes too, or 0.
    """

    def knows(self, records: Records, index: Any, rows: Rows, row: int) -> bool:
        """Whether a row covers the records at `index`; False decides nothing."""
        ...

    def access(
        self, writes: Records, reads: Records, flags: Flags, others: Flags, index: Any, rows: Rows, proxy: int, new: Any, reading: bool
    ) -> bool:
        """Whether all that is recorded at `index` is known and nobody raised a flag; then `new` is recorded. False decides nothing."""
        ...

    def read(
        self,
        writes: Records,
        reads: Records,
        flags: Flags,
        index: Any,
        rows: Rows,
        proxy: int,
        new: Any,
        warps: Rows,
        own: int,
        synced: int,
    ) -> tuple[()] | tuple[Records, Records] | None:
        """A read that knows all writes, recorded, but for the locations and records answered: another reader stays there.

        Reads of the warp `own`, or of none (-1), follow each other (`LaneOrder.in_order`). None decides nothing.
        """
        ...

    def pages(self, index: Records, shift: int) -> list[int]:
        """Pages of 2 ** shift locations in which these lie."""
        ...

    def keep(self, some: NDArray[np.bool_], row: Records, first: int, index: Records, new: Records) -> None:
        """Records of an agent's reads beside others, in its row for the page from location `first` on."""
        ...

    def locate(self, starts: Records, size: int, first: Records, shifts: NDArray[np.uint8], page: int) -> Records | None:
        """Indices of the records of [start, start + size), of pages of 2 ** page bytes with the first record and log2 of a record's bytes
        each. None where pages differ, or have too large ones."""
        ...

    def raise_to(self, clock: Rows, rows: Sequence[int], known: list[tuple[Records, int]]) -> None:
        """Rows of a clock know agents up to a time at least."""
        ...


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


@cache
def quick_check() -> QuickCheck:
    """The compiled functions, or what stands for them."""
    module: QuickCheck | None = compiled("quick_check", FIELDS)
    return module or Uncompiled()
