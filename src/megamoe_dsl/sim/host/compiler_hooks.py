"""What the DSL compiles inside a `with` runs on a simulated device.

Four functions of the DSL (4.8.1) are replaced while it lasts: every compilation keeps its PTX, the execution engine of a compiled
module gets the module's CUDA calls, the module learns its PTX, and calls through TVM FFI keep the engine that they were compiled with.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .host_module import HostModule
from .simulated_device import SimulatedDevice


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of an object, another while it lasts."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def launches_on(device: SimulatedDevice, *, line_info: bool = True) -> Iterator[None]:
    """Functions that the DSL compiles inside, for the device's architecture, launch on it, also when they are called later."""
    from cutlass.base_dsl.compiler import CompileOptions, Compiler, DumpDir, GenerateLineInfo, KeepPTX
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.cutlass_dsl import CuTeDSL
    from cutlass.cutlass_dsl.tvm_ffi_provider import TVMFFIJitCompiledFunctionBase

    apply_settings, make_engine, build = CompileOptions.apply_envar_settings, Compiler.jit, BaseDSL._build_jit_function

    def apply(self: Any, settings: Any, function_name: str) -> None:
        for name, value in (("_arch", device.arch), ("disable_file_caching", True)):
            if getattr(settings, name) != value:
                stack.enter_context(_replaced(settings, name, value))
        for option, value in ((KeepPTX, True), (DumpDir, folder), (GenerateLineInfo, line_info)):
            if not self.options[option].value:
                stack.enter_context(_replaced(self.options[option], "value", value))
        apply_settings(self, settings, function_name)

    def jit(self: Any, *arguments: Any, **options: Any) -> Any:
        engine = make_engine(self, *arguments, **options)
        engine.host_module = HostModule(device)
        for name, callback in engine.host_module.symbols.items():
            engine.raw_register_runtime(name, ctypes.cast(callback, ctypes.c_void_p))
        return engine

    def build_function(self: Any, kind: Any, module: Any, engine: Any, *arguments: Any) -> Any:
        if engine is not None and self.num_kernels:
            engine.host_module.ptx = Path(self.compile_options.full_ptx_path).read_text()
        function: Any = build(self, kind, module, engine, *arguments)
        function.num_devices = 1  # in place of a cached property that asks the driver
        return function

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for owner, name, value in (
            (CuTeDSL._get_dsl().envar, "_arch", device.arch),
            (CompileOptions, "apply_envar_settings", apply),
            (Compiler, "jit", jit),
            (BaseDSL, "_build_jit_function", build_function),
            (TVMFFIJitCompiledFunctionBase, "_create_tvm_ffi_function", _tvm_ffi_function),
        ):
            stack.enter_context(_replaced(owner, name, value))
        yield


def _tvm_ffi_function(self: Any) -> Any:
    """A TVM FFI function over the engine's packed entry, which takes an array of pointers to arguments and result."""
    import tvm_ffi

    if (engine := self.engine) is None:
        return None
    packed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.raw_lookup(f"__tvm_ffi_{self.function_name}"))

    def call(handle: int | None, arguments: int | None, count: int, result: int | None) -> int:
        values = ctypes.c_void_p(handle), ctypes.c_void_p(arguments), ctypes.c_int32(count), ctypes.c_void_p(result), ctypes.c_int32()
        packed((ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values)))
        return values[-1].value  # type: ignore[return-value]

    entry = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 2, ctypes.c_int32, ctypes.c_void_p)(call)
    engine.tvm_ffi_entry = entry  # lives as long as what calls it
    return tvm_ffi.Function.__from_extern_c__(ctypes.cast(entry, ctypes.c_void_p).value or 0, keep_alive_object=engine)
