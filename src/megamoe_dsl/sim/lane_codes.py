"""Which lanes of a warp have a part in an access: a code of six bits in every access record of the race detector.

0 to 31 is one lane. Other codes are for several: lanes that all do the same to a location (a broadcast), lanes that each have a part of it
(a stored matrix), and, from FIRST_GROUP on, lanes of some mask that all do the same.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .lanes import Mask, addresses

FULL = 0xFFFFFFFF
CODE_SHIFT = 34
ALIKE, SEVERAL, FIRST_GROUP, LAST = 32, 33, 34, 63
CODE_MASK = LAST << CODE_SHIFT

_groups: list[int] = []
_bits: dict[bytes, int] = {}


def bits_of(mask: Mask) -> int:
    """A mask as an integer; bit i is lane i."""
    if mask is None:
        return FULL
    key = mask.tobytes()
    if (bits := _bits.get(key)) is None:
        if len(_bits) > 1 << 16:
            _bits.clear()
        bits = _bits[key] = int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
    return bits


def mask_of(lanes: list[int]) -> int:
    return FULL if len(lanes) == 32 else 1 << lanes[0] if len(lanes) == 1 else sum(1 << lane for lane in lanes)


@lru_cache(maxsize=4096)
def lanes_of(bits: int) -> tuple[int, ...]:
    """The lanes of a mask, ascending."""
    return tuple(lane for lane in range(32) if bits >> lane & 1)


def members(code: int) -> int:
    """The lanes that a code means, as a mask."""
    if code < ALIKE:
        return 1 << code
    return _groups[code - FIRST_GROUP] if FIRST_GROUP <= code < FIRST_GROUP + len(_groups) else FULL


def alike(bits: int) -> int:
    """The code of lanes that all do the same. Masks beyond the thirtieth count as all lanes."""
    if bits == FULL:
        return ALIKE
    if not bits & (bits - 1):
        return bits.bit_length() - 1
    if bits not in _groups:
        if FIRST_GROUP + len(_groups) > LAST:
            return ALIKE
        _groups.append(bits)
    return FIRST_GROUP + _groups.index(bits)


def codes_of(bits: int, index: NDArray[np.int64]) -> NDArray[np.int64] | int:
    """The codes, in place, of the locations that lanes `bits` touch: one lane after the other, each with as many."""
    if not bits & (bits - 1):
        return bits.bit_length() - 1 << CODE_SHIFT
    return _pattern(bits, addresses(index, -index.item(0)).tobytes())


@lru_cache(maxsize=1 << 14)
def _pattern(bits: int, steps: bytes) -> NDArray[np.int64]:
    index, lanes = np.frombuffer(steps, np.int64), np.array(lanes_of(bits))
    if len(index) % len(lanes):
        return np.full(len(index), SEVERAL << CODE_SHIFT)
    codes = np.repeat(lanes, len(index) // len(lanes))
    _, first, inverse = np.unique(index, return_index=True, return_inverse=True)
    shared = np.zeros(len(first), np.bool_)
    np.logical_or.at(shared, inverse, codes != codes[first][inverse])
    return np.where(shared[inverse], alike(bits), codes) << CODE_SHIFT


def code_of(where: object, parts: bool = False) -> int | None:
    """Which lanes of a warp make an access: all alike, when it is one slice, each a part, or each its own (None)."""
    return SEVERAL if parts else ALIKE if isinstance(where, slice) else None
