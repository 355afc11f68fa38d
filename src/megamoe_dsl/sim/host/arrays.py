"""Arrays in host memory that the DSL takes for arrays on the device, and the global memory of a run that they make."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SimError
from ..memory import Bytes, GlobalMemory

_CUDA = 2  # kDLCUDA
_DEVICE_TYPE_OFFSET = 8  # of DLTensor


class DeviceArray:
    """A numpy array or CPU torch tensor, to be passed to `from_dlpack` of the DSL, which then takes it for a tensor in global memory."""

    def __init__(self, array: Any) -> None:
        if not hasattr(array, "__dlpack__"):
            raise SimError(f"{type(array).__name__}: must be a numpy array or a CPU torch tensor")
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        return claim_cuda(self.array.__dlpack__())


def claim_cuda(capsule: Any) -> Any:
    """The DLPack capsule of an array in host memory, changed to say that it lies on a CUDA device."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + _DEVICE_TYPE_OFFSET).value = _CUDA
    return capsule


@dataclass(frozen=True)
class ByteSpan:
    """Bytes [start, end) of memory that an array occupies."""

    start: int
    end: int
    name: str

    @classmethod
    def of(cls, array: Any, name: str) -> ByteSpan | None:
        """The span of a numpy array, torch tensor or tensor of the DSL; None for anything else or without elements. Raises SimError."""
        shape, of_dsl = getattr(array, "shape", None), not callable(getattr(array, "data_ptr", len))
        if shape is None or not (of_dsl or is_array(array)):
            return None
        if getattr(getattr(array, "device", None), "type", "cpu") != "cpu":
            raise SimError(f"{name} is on {array.device}: must be in host memory")
        if 0 in shape:
            return None
        if of_dsl:
            start, bits, strides = array.data_ptr, array.element_type.width, array.stride
        elif hasattr(array, "ctypes"):
            if any(one < 0 for one in array.strides):
                raise SimError("an array with negative strides: must have strides of 0 or more")
            start, bits, strides = array.ctypes.data, 8 * array.itemsize, [one // array.itemsize for one in array.strides]
        else:
            start, bits, strides = array.data_ptr(), 8 * array.itemsize, array.stride()
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        return cls(int(start), int(start) + last * bits // 8 + -(-bits // 8), name)


def is_array(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "shape")


def visible_memory(arrays: Iterable[tuple[str, int, Any]], outputs: Sequence[Any] = ()) -> GlobalMemory:
    """Memory that holds the arrays among (name, rank, value); views of one another become one buffer. `outputs` hold nothing before the
    run. Raises SimError for an output that is not among the arrays, or shares memory with another."""
    spans = [(span, rank) for name, rank, value in arrays if (span := ByteSpan.of(value, name)) is not None]
    written = [span for i, one in enumerate(outputs) if (span := ByteSpan.of(one, f"outputs[{i}]")) is not None]
    for span in written:
        inside = {(one.start, one.end) for one, _ in spans if one.start < span.end and span.start < one.end}
        if inside != {(span.start, span.end)}:
            raise SimError(f"{span.name}: must be an argument or one of buffers, and share no memory with another")
    memory = GlobalMemory()
    for span, rank in _merged(spans):
        memory.add(bytes_of(span), span.name, rank, initialized=all(one.start != span.start for one in written))
    return memory


def bytes_of(span: ByteSpan) -> Bytes:
    return np.ctypeslib.as_array((ctypes.c_uint8 * (span.end - span.start)).from_address(span.start))


def arrays_of(arguments: Iterable[Any], buffers: Iterable[Any] = ()) -> list[Bytes]:
    """The bytes of all arrays that a run with these arguments may change, as views."""
    values = [one for value in arguments for one in (value.values if isinstance(value, PerRank) else (value,))]
    return [bytes_of(span) for value in (*values, *buffers) if (span := ByteSpan.of(value, "an argument")) is not None]


def _merged(spans: list[tuple[ByteSpan, int]]) -> list[tuple[ByteSpan, int]]:
    merged: list[tuple[ByteSpan, int]] = []
    for span, rank in sorted(spans, key=lambda one: (one[0].start, -one[0].end)):
        if merged and span.start < merged[-1][0].end:
            before, first = merged[-1]
            merged[-1] = ByteSpan(before.start, max(before.end, span.end), before.name), first
        else:
            merged.append((span, rank))
    return merged


class PerRank:
    """An argument of `run` that differs from rank to rank: one value for each."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def of_rank(value: Any, rank: int, ranks: int, place: int) -> Any:
    """An argument as one of `ranks` ranks gets it; `place` names it in errors.  Raises SimError for another number of values."""
    if not isinstance(value, PerRank):
        return value
    if len(value.values) != ranks:
        raise SimError(f"argument {place}: PerRank of {len(value.values)} values, must be {ranks}")
    return value.values[rank]
