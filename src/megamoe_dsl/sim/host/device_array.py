"""Arrays in host memory that the DSL takes for arrays on the device."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from ..errors import SimError

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
        """The span of a numpy array, torch tensor or tensor of the DSL; None for anything else, and for an array without elements.

        Raises SimError for a torch tensor that is not in host memory.
        """
        shape, size = getattr(array, "shape", None), _element_bits(array)
        if shape is None or not size:
            return None
        if getattr(getattr(array, "device", None), "type", "cpu") != "cpu":
            raise SimError(f"{name} is on {array.device}: must be in host memory")
        if 0 in shape:
            return None
        last = sum((extent - 1) * stride for extent, stride in zip(shape, _strides(array), strict=True))
        start = _address(array)
        return cls(start, start + last * size // 8 + -(-size // 8), name)


def is_array(value: Any) -> bool:
    """Whether a value is a numpy array or a torch tensor."""
    return hasattr(value, "__dlpack__") and hasattr(value, "shape")


def _address(array: Any) -> int:
    if hasattr(array, "ctypes"):
        return int(array.ctypes.data)
    return int(array.data_ptr() if callable(array.data_ptr) else array.data_ptr)


def _element_bits(array: Any) -> int:
    """Bits of an element; 0 for what is no array."""
    if hasattr(array, "data_ptr") and not callable(array.data_ptr):  # of the DSL
        return int(array.element_type.width)
    itemsize = getattr(array, "itemsize", 0) if is_array(array) else 0
    return 8 * int(itemsize() if callable(itemsize) else itemsize)


def _strides(array: Any) -> tuple[int, ...]:
    if hasattr(array, "ctypes"):
        if any(one < 0 for one in array.strides):
            raise SimError("an array with negative strides: must have strides of 0 or more")
        return tuple(one // array.itemsize for one in array.strides)
    return tuple(array.stride() if callable(array.stride) else array.stride)
