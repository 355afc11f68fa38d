"""The 32 lanes of a warp: values, masks and addresses. `lanes.c` has the functions again, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled

Lanes = NDArray[Any]
"""One value per lane."""

Mask = NDArray[np.bool_] | None
"""Which lanes; None for all 32."""

LANE = np.arange(32, dtype=np.uint32)
"""Every lane's own number."""

ALONE = [np.arange(32) == lane for lane in range(32)]
"""For every lane, the mask of that lane only."""


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


if _in_c := compiled("lanes", {}):
    uniform, span, take, put = _in_c.uniform, _in_c.span, _in_c.take, _in_c.put
