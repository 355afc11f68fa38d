"""Floats of 4 and 6 bits in the middle of bytes, as tensor memory holds them.

Source: PTX ISA, "tcgen05.cp", "Optional Decompression": 16 values and their padding in 16 bytes of shared memory become 16 bytes.
"""

from __future__ import annotations

import numpy as np

from . import formats
from .formats import Float64Array
from .memory import Bytes
from .umma import unpack_6bit

GROUP = 16
"""Bytes of a group in shared memory, and values in it."""
_SHIFTS = {"e2m1": 2, "e2m3": 1, "e3m2": 1}
_TABLES = {"e2m1": formats.E2M1, "e2m3": formats.E2M3, "e3m2": formats.E3M2}


def expand(raw: Bytes, source: str) -> Bytes:
    """Bytes (rows, n) as shared memory has them to as many holders; `source` is b4x16_p64 or b6x16_p32."""
    groups = raw.reshape(len(raw), -1, GROUP)
    if source == "b4x16_p64":
        packed = groups[:, :, : GROUP // 2]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.uint8) << 2
    else:
        codes = unpack_6bit(groups[:, :, : 3 * GROUP // 4]).astype(np.uint8) << 1
    return np.asarray(codes.reshape(len(raw), -1), np.uint8)


def is_held(name: str) -> bool:
    """Whether operands of this element format are held in the middle of bytes."""
    return name in _SHIFTS


def decode_holders(raw: Bytes, name: str) -> Float64Array:
    """Values of holders, of an element format that is held."""
    table = _TABLES[name]
    return table[raw >> _SHIFTS[name] & (len(table) - 1)]
