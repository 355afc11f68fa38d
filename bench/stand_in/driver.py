"""cuda.bindings without a driver: allocations are host memory, streams and events do nothing, attributes are the simulated device's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import cuda.bindings.driver as driver
import cuda.bindings.runtime as runtime
import numpy as np

Show = Callable[[int, int, Callable[[], bool]], None]


def install(show: Show, attribute: Callable[[int], int], more: Mapping[str, Any] | None = None) -> None:
    """Put the stand-in in place, for the rest of the process; `more` functions of the driver by name."""

    kept: list[Any] = []

    def allocate(size: int, *_: Any) -> int:
        memory = np.zeros(int(size) + 256, np.uint8)
        start = -(-memory.ctypes.data // 256) * 256
        kept.append(memory)
        show(start, int(size), lambda: False)
        return start

    def copy(to: Any, source: Any, size: int, *_: Any) -> None:
        ctypes.memmove(int(to), int(source), int(size))

    def fill(word: Any) -> Callable[..., None]:
        return lambda to, value, count, *_: _fill(int(to), word(int(value)), int(count))

    answers: dict[str, Any] = {
        "cuDeviceGetCount": 1,
        "cuDeviceGet": lambda number: driver.CUdevice(number),
        "cuCtxGetCurrent": lambda: driver.CUcontext(1),
        "cuCtxGetDevice": lambda: driver.CUdevice(0),
        "cuDevicePrimaryCtxRetain": lambda _: driver.CUcontext(1),
        "cuCtxCreate": lambda *_: driver.CUcontext(1),
        "cuDriverGetVersion": 13000,
        "cuDeviceGetAttribute": lambda number, _: attribute(int(number)),
        "cuStreamCreate": lambda *_: driver.CUstream(0),
        "cuEventCreate": lambda *_: driver.CUevent(1),
        "cuEventElapsedTime": 1.0,
        "cuMemAlloc": lambda size: driver.CUdeviceptr(allocate(size)),
        "cuMemcpyHtoD": copy,
        "cuMemcpyDtoH": copy,
        "cuMemcpyDtoD": copy,
        "cuMemsetD8": fill(ctypes.c_uint8),
        "cuMemsetD32": fill(ctypes.c_uint32),
        "cuMemsetD32Async": fill(ctypes.c_uint32),
        "cudaGetDeviceCount": 1,
        "cudaGetDevice": 0,
        "cudaDeviceGetAttribute": lambda number, _: attribute(int(number)),
        "cudaRuntimeGetVersion": 13000,
        "cudaDriverGetVersion": 13000,
        "cudaMalloc": allocate,
        "cudaMemcpy": copy,
        "cudaMemcpyAsync": copy,
        "cudaMemset": fill(ctypes.c_uint8),
        "cudaMemsetAsync": fill(ctypes.c_uint8),
        "cudaStreamCreate": lambda *_: runtime.cudaStream_t(0),
        "cudaStreamCreateWithFlags": lambda *_: runtime.cudaStream_t(0),
        "cudaEventCreate": lambda *_: runtime.cudaEvent_t(1),
        "cudaEventCreateWithFlags": lambda *_: runtime.cudaEvent_t(1),
        "cudaEventElapsedTime": 1.0,
        **dict.fromkeys(_NOTHING),
        **(more or {}),
    }
    for module, success in ((driver, driver.CUresult.CUDA_SUCCESS), (runtime, runtime.cudaError_t.cudaSuccess)):
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, _answering(success, answer))


_NOTHING = """cuInit cuCtxSetCurrent cuCtxSynchronize cuCtxDestroy cuStreamSynchronize cuStreamDestroy cuEventRecord cuEventSynchronize
cuEventDestroy cuMemFree cuStreamWaitEvent cudaSetDevice cudaFree cudaDeviceSynchronize cudaStreamSynchronize cudaStreamDestroy
cudaEventRecord cudaEventSynchronize cudaEventDestroy cudaStreamWaitEvent cudaLibraryUnload""".split()  # noqa: SIM905


def _answering(success: Any, answer: Any) -> Callable[..., tuple[Any, ...]]:
    def call(*arguments: Any) -> tuple[Any, ...]:
        value = answer(*arguments) if callable(answer) else answer
        return (success,) if value is None else (success, value)

    return call


def _fill(start: int, word: Any, count: int) -> None:
    ctypes.memmove(start, bytes(word) * count, ctypes.sizeof(word) * count)
