"""Tensor memory of one CTA: 128 lanes by 512 columns of 32 bits, its allocator, and the register fragments of tcgen05.ld and st.

Sources: PTX ISA, "Tensor Memory" (addressing, allocation, access restrictions) and "Data Movement Shape"; the fragment layouts equal
CUTLASS's copy traits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .chunks import IndexArray
from .errors import SimError

LANES = 128
COLUMNS = 512


class TensorMemory:
    """Contents, validity and allocations.

    words         (128, 512) uint32
    valid         (128, 512) bool, False where nothing was written since the column was allocated
    allocated     first column: number of columns
    may_allocate  False after `tcgen05.relinquish_alloc_permit`
    """

    def __init__(self) -> None:
        self.words = np.zeros((LANES, COLUMNS), np.uint32)
        self.valid = np.zeros((LANES, COLUMNS), bool)
        self.allocated: dict[int, int] = {}
        self.may_allocate = True
        self._written: set[tuple[int, int, int, int]] = set()  # pieces known to be allocated and valid, until a column is freed

    def allocate(self, columns: int) -> int | None:
        """First column of a new allocation, or None while there is no room (the instruction then blocks).

        Raises SimError for a size that the ISA does not allow, and after the permit was given up.
        """
        if columns not in (32, 64, 128, 256, 512):
            raise SimError(f"tcgen05.alloc of {columns} columns: must be a power of two from 32 to 512")
        if not self.may_allocate:
            raise SimError("tcgen05.alloc after tcgen05.relinquish_alloc_permit")
        for start in range(0, COLUMNS - columns + 1, 32):
            if all(start + columns <= first or start >= first + count for first, count in self.allocated.items()):
                self.allocated[start] = columns
                return start
        return None

    def free(self, address: int, columns: int) -> None:
        """Undo :meth:`allocate`; address and size must be those of one allocation."""
        start = address & 0xFFFF
        if self.allocated.get(start) != columns:
            held = ", ".join(f"{count} at column {first}" for first, count in self.allocated.items()) or "nothing"
            raise SimError(f"tcgen05.dealloc of {columns} columns at column {start}: allocated is {held}")
        del self.allocated[start]
        self.valid[:, start : start + columns] = False
        self._written.clear()

    def read(self, lanes: slice, column: int, count: int, what: str) -> NDArray[np.uint32] | None:
        """Columns [column, column + count) of some lanes, None when not all were written. Raises SimError outside an allocation."""
        if (piece := (lanes.start, lanes.stop, column, count)) not in self._written:
            self.check(column, count, what)
            if b"\x00" in self.valid[lanes, column : column + count].tobytes():
                return None
            self._written.add(piece)
        return self.words[lanes, column : column + count]

    def write(self, lanes: slice, column: int, values: NDArray[np.uint32], what: str) -> None:
        """Replace columns of some lanes. Raises SimError outside an allocation."""
        end = column + values.shape[1]
        if (piece := (lanes.start, lanes.stop, column, values.shape[1])) not in self._written:
            self.check(column, values.shape[1], what)
            self.valid[lanes, column:end] = True
            self._written.add(piece)
        self.words[lanes, column:end] = values

    def check(self, column: int, count: int, what: str) -> None:
        """Raise unless columns [column, column + count) lie inside one allocation."""
        for first, size in self.allocated.items():
            if first <= column and column + count <= first + size:
                return
        held = ", ".join(f"[{first}, {first + size})" for first, size in self.allocated.items()) or "none"
        raise SimError(f"{what}: TMEM columns [{column}, {column + count}) are outside the allocation ({held})")


def all_valid(flags: NDArray[np.bool_]) -> bool:
    """Whether every flag is set; on small pieces of a larger array this is a good deal faster than `flags.all()`."""
    return b"\x00" not in flags.tobytes()


@lru_cache(maxsize=4096)
def granules(quarters: range | tuple[int, ...], column: int, count: int) -> IndexArray:
    """Race-detector granules of columns [column, column + count) in the given lane quarters: one granule per quarter and column."""
    return np.concatenate([quarter * COLUMNS + np.arange(column, column + count) for quarter in quarters])


@lru_cache(maxsize=256)
def fragment(shape: str, repeat: int) -> tuple[IndexArray, IndexArray, int]:
    """Where each register of a tcgen05.ld or st of `.x<repeat>` lies, relative to the instruction's address: lane and column index, each
    shaped (registers, 32 threads), and the number of columns touched."""
    thread = np.arange(32)[None, :]
    if shape == "32x32b":
        register = np.arange(repeat)[:, None]
        return np.broadcast_to(thread, (repeat, 32)), np.broadcast_to(register, (repeat, 32)), repeat
    if shape == "16x64b":
        register = np.arange(repeat)[:, None]
        lane, column = thread // 4 + 8 * (thread % 2), 2 * register + thread // 2 % 2
        return np.broadcast_to(lane, column.shape), column, 2 * repeat
    if shape == "16x128b":
        register = np.arange(2 * repeat)[:, None]
        return thread // 4 + 8 * (register % 2), 4 * (register // 2) + thread % 4, 4 * repeat
    if shape == "16x256b":
        register = np.arange(4 * repeat)[:, None]
        return thread // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (thread % 4) + register % 2, 8 * repeat
    raise SimError(f"tcgen05.ld/st shape {shape} is not modeled (32x32b, 16x64b, 16x128b, 16x256b are)")
