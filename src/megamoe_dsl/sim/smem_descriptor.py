"""Shared-memory matrix descriptors of tcgen05 and wgmma, and the bytes they name.

Sources: PTX ISA, "Shared memory descriptor" (tcgen05) and "Matrix Descriptor Format" (wgmma), and "Canonical Layouts"; the K-major
address rule start + (r/8)*SBO + (r%8)*span + k, then swizzle, was confirmed by running compiled kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..hardware.operand_tile import Swizzle
from .chunks import CHUNK, IndexArray
from .errors import SimError

_SM100_SPANS = {0: 0, 2: 128, 4: 64, 6: 32}
_SM90_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}


@dataclass(frozen=True)
class SmemDescriptor:
    """A decoded descriptor, in bytes.

    start    offset of the first byte in the shared memory of the CTA
    leading  leading-dimension byte offset (LBO); with `absolute` where the rows go on after their span (K of 48 bytes)
    stride   stride-dimension byte offset (SBO)
    span     swizzle span, 0, 32, 64 or 128
    """

    start: int
    leading: int
    stride: int
    span: int
    absolute: bool = False

    @classmethod
    @lru_cache(maxsize=4096)
    def decode_sm100(cls, word: int) -> SmemDescriptor:
        """tcgen05 form: version 1, layout type in bits 61-63."""
        version = (word >> 46) & 3
        if version != 1:
            raise SimError(f"SMEM descriptor {word:#018x}: version field is {version}, sm_100 needs 1")
        layout = word >> 61
        if layout not in _SM100_SPANS:
            raise SimError(f"SMEM descriptor {word:#018x}: layout type {layout} is not modeled (0, 2, 4, 6 are)")
        absolute, span = bool((word >> 52) & 1), _SM100_SPANS[layout]
        if absolute and span != 128:
            raise SimError(f"SMEM descriptor {word:#018x}: an absolute leading dimension needs the 128-byte swizzle")
        return replace(cls._decode(word, span), absolute=absolute)

    @classmethod
    @lru_cache(maxsize=4096)
    def decode_sm90(cls, word: int) -> SmemDescriptor:
        """wgmma form: layout type in bits 62-63."""
        return cls._decode(word, _SM90_SPANS[word >> 62])

    @classmethod
    def _decode(cls, word: int, span: int) -> SmemDescriptor:
        base_offset = (word >> 49) & 7
        if base_offset:
            raise SimError(f"SMEM descriptor {word:#018x}: base offset {base_offset} is not modeled, align the tile to its swizzle")
        return cls((word & 0x3FFF) << 4, ((word >> 16) & 0x3FFF) << 4, ((word >> 32) & 0x3FFF) << 4, span)


@lru_cache(maxsize=64)  # large; those who ask keep what they make of it
def operand_bytes(descriptor: SmemDescriptor, rows: int, k_bytes: int, element_bytes: int, mn_major: bool) -> IndexArray:
    """Offsets of an operand slice, shaped (rows, k_bytes): byte k of row r, whatever the layout in memory.

    `rows` is the extent along M or N; `element_bytes` matters to MN-major layouts, in which M (or N) is the contiguous dimension.
    """
    row = np.arange(rows)[:, None]
    k_byte = np.arange(k_bytes)[None, :]
    span = descriptor.span
    if not mn_major:
        if descriptor.absolute:
            room = span - descriptor.start % span
            begin = np.where(k_byte < room, descriptor.start, descriptor.leading - room)
            return Swizzle(span)(begin + (row // 8) * descriptor.stride + (row % 8) * span + k_byte)
        if span:
            linear = (row // 8) * descriptor.stride + (row % 8) * span + k_byte
        else:
            linear = (row // 8) * descriptor.stride + (row % 8) * CHUNK + (k_byte // CHUNK) * descriptor.leading + k_byte % CHUNK
    else:
        k, byte_of_element = k_byte // element_bytes, k_byte % element_bytes
        mn_byte = row * element_bytes + byte_of_element
        width = span or CHUNK
        block, k_group = (descriptor.leading, descriptor.stride) if span else (descriptor.stride, descriptor.leading)
        linear = (mn_byte // width) * block + mn_byte % width + (k % 8) * width + (k // 8) * k_group
    return Swizzle(span)(descriptor.start + linear)


@lru_cache(maxsize=64)
def copy_bytes(descriptor: SmemDescriptor, rows: int, row_bytes: int) -> IndexArray:
    """Offsets of the source of a ``tcgen05.cp``, shaped (rows, row_bytes): groups of 8 rows SBO apart, rows one span apart.

    Without a swizzle a row is 16 bytes and further 16-byte chunks of it lie LBO apart.
    """
    return operand_bytes(descriptor, rows, row_bytes, 1, False)
