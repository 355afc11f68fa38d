"""Functions of the DSL that ask a GPU: how many clusters fit, how long a kernel takes, and whether a tensor lies on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def install(num_sms: int, launched: Callable[[], bool]) -> None:
    """Put the stand-in in place, for the rest of the process.

    Nothing is timed: every time is a microsecond, and only what has launched nothing before it asks for the time runs for it, once.
    """
    import cutlass.cute.testing
    import cutlass.testing
    from cutlass.cutlass_dsl import tvm_ffi_provider
    from cutlass.utils import HardwareInfo

    def benchmark(callable: Callable[..., Any], *, kernel_arguments: Any = None, workspace_generator: Any = None, **_: Any) -> float:
        if not launched():
            given = kernel_arguments or workspace_generator()
            callable(*given.args, **given.kwargs)
        return 1.0

    HardwareInfo.__init__ = lambda self, device_id=0: None  # type: ignore[assignment, misc]
    HardwareInfo.get_max_active_clusters = lambda self, cluster_size, stream=None: max(1, num_sms // cluster_size)  # type: ignore[method-assign]
    HardwareInfo.get_device_multiprocessor_count = lambda self: num_sms  # type: ignore[method-assign]
    HardwareInfo.get_l2_cache_size_in_bytes = lambda self: 1 << 20  # type: ignore[method-assign]
    for module in (cutlass.testing, cutlass.cute.testing):
        module.benchmark = benchmark  # type: ignore[attr-defined]
    for kind in (tvm_ffi_provider.TVMFFIJitCompiledFunction, tvm_ffi_provider.TVMFFIJitCompiledFunctionWithKwargs):
        kind.__call__ = _with_device_tensors(kind.__call__)  # type: ignore[method-assign, assignment]


def _with_device_tensors(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call through TVM FFI, which asks torch's C functions where a tensor lies, with tensors that claim to be on the GPU."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, *map(_device_tensor, args), **{name: _device_tensor(value) for name, value in kwargs.items()})

    return run


def _device_tensor(value: Any) -> Any:
    import tvm_ffi

    if isinstance(value, torch.Tensor):
        return tvm_ffi.from_dlpack(value)
    if isinstance(value, tuple | list):
        parts = [_device_tensor(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
