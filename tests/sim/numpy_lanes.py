"""The functions of `lanes.c` in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megamoe_dsl.sim.lanes import Lanes, Mask


def uniform(values: Lanes) -> bool:
    """Whether all lanes have the same bits."""
    return values.tobytes() == values[:1].tobytes() * len(values)


def span(addresses: NDArray[np.int64], size: int) -> tuple[int, int, bool]:
    """The lowest address, the highest, and whether all are multiples of `size`, a power of two."""
    low, high = int(addresses.min()), int(addresses.max())
    return low, high, not (addresses & (size - 1)).any()


def take(rows: Lanes, valid: NDArray[np.bool_] | None, offsets: NDArray[np.int64], total: int) -> Lanes | None:
    """The rows of `total` bytes at these byte offsets, in memory whose bytes are `valid` (None: all); None when one of theirs is not."""
    index = offsets // total
    if valid is not None and not valid[: rows.nbytes].reshape(-1, total).take(index, 0).all():
        return None
    return rows.take(index, 0)


def put(rows: Lanes, valid: NDArray[np.bool_] | None, offsets: NDArray[np.int64], total: int, values: Lanes) -> bool:
    """Store values of the rows' type at byte offsets, whose bytes are then valid; False when they have another type."""
    if values.dtype != rows.dtype:
        return False
    index = offsets // total
    rows[index] = values
    if valid is not None:
        valid[: rows.nbytes].reshape(-1, total)[index] = True
    return True


def addresses(values: Lanes, offset: int) -> NDArray[np.int64]:
    """Values of 8 bytes, or unsigned ones of 4, plus an offset."""
    wide: NDArray[np.int64] = values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)
    return wide + np.int64(offset)


def stacked(columns: list[Lanes], mask: Mask) -> Lanes:
    """A row for every lane of the mask with an element of every column; of one column, its elements."""
    rows = np.stack(columns, axis=1) if len(columns) > 1 else columns[0]
    return rows if mask is None else rows[mask]


def deliver(registers: list[Lanes], numbers: tuple[int, ...], rows: Lanes, mask: Mask) -> None:
    """Columns of rows, one row for every lane of the mask, become these registers; other lanes keep what they have."""
    columns = np.ascontiguousarray(rows.reshape(-1, len(numbers)).T)
    for number, column in zip(numbers, columns, strict=True):
        values = column.view(registers[number].dtype)
        if mask is not None:
            values, here = registers[number].copy(), values
            values[mask] = here
        registers[number] = values
