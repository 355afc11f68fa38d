"""Simulated memory: registered global buffers and the shared memory of a CTA.

Addresses. Global: the buffer's real data pointer. Shared: byte offset in the CTA plus `cluster rank << 24`; the first 1024 bytes are
reserved, as on SM90 and later. Generic: shared, parameter and local memory sit in windows of their own, above every real pointer.
"""

from __future__ import annotations

import bisect
import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import SimError
from .shadow import GLOBAL, SHARED, Shadow

SHARED_BASE = 0x0001_0000_0000_0000
PARAM_BASE = 0x0002_0000_0000_0000
LOCAL_BASE = 0x0003_0000_0000_0000
SMEM_RESERVED = 1024
SMEM_BYTES = 228 * 1024
SMEM_MAX = 227 * 1024
WINDOW_SHIFT = 24
WINDOW_MASK = (1 << WINDOW_SHIFT) - 1

Bytes = NDArray[np.uint8]
POISON_BYTE = 0xFF  # What uninitialized shared memory holds: a NaN in every floating-point format that has one.
POISON_WORD = np.uint32(0x7FC0DEAD)  # a NaN
POISON: dict[type, NDArray[Any]] = {dtype: np.full(32, POISON_WORD).view(dtype) for dtype in (np.uint32, np.int32, np.float32)}
"""What registers hold while an asynchronous operation is to write them."""
B128 = np.complex128  # Stands for 16 opaque bytes.
ELEMENTS: dict[int, type] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: B128}
"""What holds an element of so many bytes, whatever it means."""
DTYPES: dict[str, type] = {
    "b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16, "s16": np.int16, "f16": np.float16,
    "bf16": np.uint16, "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32, "f16x2": np.uint32,
    "bf16x2": np.uint32, "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f64": np.float64, "f32x2": np.uint64,
    "b128": B128, "pred": np.bool_,
}  # fmt: skip
"""What holds a value of a type of PTX."""


class ByteStore:
    """Bytes, with an optional record of which were ever written, seen in elements of several sizes. `limit` is their end. Findings name the
    kind of memory (`name`) and the memory itself (`label`), with offsets that count from `origin`."""

    def __init__(
        self, data: Bytes, valid: NDArray[np.bool_] | None, name: str = "", label: str = "", origin: int = 0, space: int = GLOBAL
    ) -> None:
        self.data, self.valid, self.limit = data, valid, len(data)
        self.name, self.label, self.origin, self.space = name, label, origin, space
        self.read_only, self.base = False, 0
        self.shadow: Shadow | None = None  # of the race detector, while a run lasts
        self._views: dict[tuple[int, int], NDArray[Any]] = {}

    def where(self, offset: int) -> str:
        return f"{'shared' if self.space == SHARED else 'global'} memory: {self.label}+{offset - self.origin}"

    def written(self, offset: int, size: int) -> Bytes:
        """`size` bytes (a view), all of which must have been written."""
        if self.valid is not None and not (valid := self.valid[offset : offset + size]).all():
            raise SimError(f"read of uninitialized {self.where(offset + int(np.argmin(valid)))}")
        return self.data[offset : offset + size]

    def put(self, offset: int, values: Bytes) -> None:
        self.data[offset : offset + len(values)] = values
        if self.valid is not None:
            self.valid[offset : offset + len(values)] = True

    def rows(self, size: int, count: int) -> NDArray[Any]:
        """The bytes as rows of `count` elements of `size` bytes (a tail that does not fill a row is left out). Raises SimError for a buffer
        that begins inside a row."""
        if (view := self._views.get((size, count))) is None:
            if self.base % (size * count):
                raise SimError(f"buffer {self} is not aligned to the {size * count}-byte accesses the kernel makes")
            whole = len(self.data) // (size * count) * size * count
            view = self.data[:whole].view(ELEMENTS[size])
            view = view.reshape(-1, count) if count > 1 else view
            self._views[(size, count)] = view
        return view

    def mark(self, index: NDArray[np.int64], size: int) -> None:
        if self.valid is not None:
            self.valid[: len(self.valid) // size * size].reshape(-1, size)[index] = True

    def first_uninitialized(self, index: NDArray[np.int64], size: int) -> int | None:
        """The byte offset of an element of `index` that was never written, or None."""
        if self.valid is None:
            return None
        flags = self.valid[: len(self.valid) // size * size].reshape(-1, size).take(index, 0)
        return None if b"\x00" not in flags.tobytes() else int(index[int(np.argmin(flags.all(axis=1)))]) * size


class Allocation(ByteStore):
    """A global buffer of one rank; `owner` keeps its memory alive."""

    def __init__(self, name: str, rank: int, base: int, data: Bytes, initialized: bool, read_only: bool, owner: object) -> None:
        super().__init__(data, None if initialized else np.zeros(len(data), np.bool_), name, f"{name}@rank{rank}")
        self.rank, self.base, self.read_only, self.owner = rank, base, read_only, owner
        self.end = base + len(data)

    def __repr__(self) -> str:
        return self.label


class GlobalMemory:
    """The global buffers of all ranks, by address."""

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.allocations: list[Allocation] = []

    def add(self, buffer: Any, name: str, rank: int = 0, initialized: bool = True, read_only: bool = False) -> int:
        """Register a contiguous numpy array or CPU torch tensor, whose bytes are shared and kept; returns its address. With
        `initialized=False` reading a byte that nothing wrote is an error, with `read_only=True` a write is, and no races are looked for."""
        if not (buffer.is_contiguous() if hasattr(buffer, "is_contiguous") else buffer.flags.c_contiguous):
            raise SimError(f"buffer {name} is not contiguous")
        base, size = int(buffer.data_ptr() if hasattr(buffer, "data_ptr") else buffer.ctypes.data), buffer.nbytes
        if size == 0:
            return base
        at = bisect.bisect(self.bases, base)
        if (at and self.allocations[at - 1].end > base) or (at < len(self.bases) and self.bases[at] < base + size):
            raise SimError(f"buffer {name} overlaps one already registered")
        data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(base))
        self.bases.insert(at, base)
        self.allocations.insert(at, Allocation(name, rank, base, data, initialized, read_only, buffer))
        return int(base)

    def find(self, address: int, size: int) -> tuple[Allocation, int]:
        """The allocation that holds [address, address + size), and the offset in it."""
        at = bisect.bisect(self.bases, address) - 1
        if at < 0 or address + size > self.allocations[at].end:
            hint = f"; {address - self.allocations[at].end:+d} bytes from the end of {self.allocations[at]}" if at >= 0 else ""
            raise SimError(f"global access out of bounds: {address:#x}, {size} bytes{hint}")
        return self.allocations[at], address - self.bases[at]

    def read(self, address: int, size: int) -> Bytes:
        """`size` bytes (a view) for an engine; uninitialized bytes are an error."""
        allocation, offset = self.find(address, size)
        return allocation.written(offset, size)

    def writable(self, address: int, size: int) -> tuple[Allocation, int]:
        allocation, offset = self.find(address, size)
        if allocation.read_only:
            raise SimError(f"write to read-only buffer {allocation}+{offset}")
        return allocation, offset


class SharedMemory(ByteStore):
    """The shared memory of one CTA. Offsets count from the hardware base, so the kernel's first byte is SMEM_RESERVED."""

    def __init__(self, size: int, label: str) -> None:
        data, valid = np.full(SMEM_BYTES, POISON_BYTE, np.uint8), np.zeros(SMEM_BYTES, np.bool_)
        super().__init__(data, valid, "smem", f"{label} smem", SMEM_RESERVED, SHARED)
        self.limit = SMEM_RESERVED + size
        self.initialized: set[object] = set()  # chunks that were found, or made, initialized: they stay so

    def holds(self, low: int, end: int) -> bool:
        return low >= SMEM_RESERVED and end <= self.limit

    def check(self, low: int, end: int) -> None:
        if not self.holds(low, end):
            reach = f"{self.label}+{low - SMEM_RESERVED} to smem+{end - SMEM_RESERVED}"
            raise SimError(f"shared access out of bounds: {reach}, size {self.limit - SMEM_RESERVED}")

    def read(self, offset: int, size: int) -> Bytes:
        self.check(offset, offset + size)
        return self.written(offset, size)

    def write(self, offset: int, values: Bytes) -> None:
        self.check(offset, offset + len(values))
        self.put(offset, values)
