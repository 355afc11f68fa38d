"""A kernel's arguments in memory, as the driver takes them: written once, then only where a launch differs from the one before."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..hardware.tensor_map import DESCRIPTOR_BYTES
from ..kernels.kernel import ArgumentSpec

C_TYPES: dict[int, Any] = {4: ctypes.c_int32, 8: ctypes.c_uint64, DESCRIPTOR_BYTES: ctypes.c_ubyte * DESCRIPTOR_BYTES}
"""By width in bytes."""


class ArgumentBlock:
    """One value of each argument.

    values   a ctypes structure with a field for each argument, by name
    address  of the table of the arguments' addresses, which the driver's launch reads before it returns
    """

    def __init__(self, spec: ArgumentSpec) -> None:
        self.names = spec.names
        layout = [(name, C_TYPES[width]) for name, width in zip(spec.names, spec.widths, strict=True)]
        structure = type("Arguments", (ctypes.Structure,), {"_fields_": layout})
        self.values: Any = structure()
        start = ctypes.addressof(self.values)
        self._table = (ctypes.c_void_p * len(layout))(*(start + getattr(structure, name).offset for name in self.names))
        self.address = ctypes.addressof(self._table)
        self._start, self._restored = start, b""

    def fill(self, arguments: Sequence[int | bytes]) -> None:
        self.forget()
        for name, value in zip(self.names, arguments, strict=True):
            setattr(self.values, name, type(getattr(self.values, name)).from_buffer_copy(value) if isinstance(value, bytes) else value)

    def save(self) -> bytes:
        return bytes(self.values)

    def restore(self, saved: bytes) -> None:
        """All arguments as they were when this was saved, but for those that have been set one by one since the same was restored last: who
        restores sets them again for every launch."""
        if saved is not self._restored:
            ctypes.memmove(self._start, saved, len(saved))
            self._restored = saved

    def forget(self) -> None:
        """What was restored last: the next `restore` writes all arguments, whatever has been set since."""
        self._restored = b""

    def read(self) -> tuple[int | bytes, ...]:
        values = [getattr(self.values, name) for name in self.names]
        return tuple(bytes(value) if isinstance(value, ctypes.Array) else value for value in values)
