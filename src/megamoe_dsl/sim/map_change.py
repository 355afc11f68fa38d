"""Tensor maps that a kernel changes: the fields of the descriptor that `tensormap.replace` writes, and who wrote a map last.

Source: PTX ISA, "tensormap.replace"; the bits of the descriptor are those of `hardware.tensor_map`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import SimError
from .interfaces import CtaLike
from .lane_agents import LaneAgents
from .memory import Bytes

_TF32 = 7 | 1 << 9  # as bits of the element field's word from bit 7 on: the TF32 flag is bit 16
_ELEMENTS = {**{code: code for code in range(11)}, 11: _TF32, 12: _TF32, 13: 11, 14: 12, 15: 13}
"""PTX element type to bits [7:16] of word 2."""

FIELDS = (
    "global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride", "elemtype", "interleave_layout", "swizzle_mode",
    "fill_mode",
)  # fmt: skip
WITH_ORDINAL = ("box_dim", "global_dim", "global_stride", "element_stride")


@dataclass
class MapChange:
    """The last change of a map in global memory: CTA, who and when; `released` once it is visible to the tensormap proxy."""

    cta: CtaLike
    by: LaneAgents
    when: int
    released: bool


def _bits(words: np.ndarray, index: int, low: int, count: int, value: int) -> None:
    mask = ((1 << count) - 1) << low
    words[index] = (int(words[index]) & ~mask & 0xFFFFFFFF) | (value << low & mask)


def replace_field(descriptor: Bytes, name: str, ordinal: int, value: int) -> Bytes:
    """A copy of the 128 bytes of a map with one field replaced. `rank` is given minus one, strides in bytes.

    Raises:
        SimError: a field or value that is not modelled.
    """
    words = np.frombuffer(descriptor.tobytes(), np.uint32).copy()
    if name == "global_address":
        words[0], words[1] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
    elif name == "rank":
        _bits(words, 2, 4, 3, value)
    elif name == "global_dim":
        words[8 + ordinal] = (value - 1) & 0xFFFFFFFF
    elif name == "global_stride":
        if value % 16:
            raise SimError(f"tensormap.replace: stride {value} must be a multiple of 16 bytes")
        words[3 + ordinal] = value >> 4 & 0xFFFFFFFF
        _bits(words, 7, 4 * ordinal, 4, value >> 36)
    elif name == "box_dim":
        _bits(words, 14 if ordinal else 13, 8 * (ordinal - 1) if ordinal else 24, 8, value - 1)
    elif name == "elemtype" and value in _ELEMENTS:
        _bits(words, 2, 7, 4, _ELEMENTS[value])
        _bits(words, 2, 16, 1, _ELEMENTS[value] >> 9)
    elif name == "swizzle_mode" and 0 <= value <= 3:
        _bits(words, 2, 13, 2, value)
    elif (name, value) not in (("element_stride", 1), ("interleave_layout", 0), ("fill_mode", 0)):
        raise SimError(f"tensormap.replace of {name} by {value} is not modelled")
    return words.view(np.uint8)
