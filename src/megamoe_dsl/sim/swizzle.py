"""Shared-memory swizzles of TMA and of the matrix instructions.

Source: PTX ISA, "Swizzling Modes"; the permutation works on the byte address itself, not on the offset inside a tile, which is why
swizzled tiles must be aligned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.int64]

_MASKS = {0: 0, 32: 1, 64: 3, 128: 7}


def swizzle(address: IndexArray, span: int) -> IndexArray:
    """Where the byte of linear ``address`` lies when rows of ``span`` bytes (0, 32, 64 or 128) are swizzled in 16-byte chunks."""
    mask = _MASKS[span]
    return address ^ (((address >> 7) & mask) << 4) if mask else address
