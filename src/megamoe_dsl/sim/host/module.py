"""Compiled host functions of the DSL, whose CUDA calls are answered in Python.

Compiled host code calls CUDA through C functions named `_cuda...`, in whose place the module's execution engine gets the callbacks
`HostModule.symbols`. The device keeps an exception in a callback, and the call answers an error. What the DSL (4.8.1) compiles inside
`launches_on` runs on a simulated device: compilations keep their PTX, and calls through TVM FFI the engine of their compilation.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...hardware.tensor_map import DESCRIPTOR_BYTES, L2_PROMOTIONS, SWIZZLES, TensorMap, TensorMapDtype
from ..errors import SimError
from ..geometry import Dim3, Launch
from ..memory import SMEM_MAX
from ..program import Program, load

_SMS, _SMEM, _SMEM_OPT_IN, _MAJOR, _MINOR = 16, 8, 97, 75, 76  # Numbers of cudaDeviceAttr.
CAPABILITIES = {"sm_80": (8, 0), "sm_90": (9, 0), "sm_90a": (9, 0), "sm_100a": (10, 0), "sm_100f": (10, 0), "sm_103a": (10, 3)}
"""Compute capability of each architecture whose PTX the simulator may be asked to run."""


@dataclass
class SimulatedDevice:
    """One simulated GPU of `arch` with `num_sms` SMs.  `take` gets every launch, made for `rank`; `error` is the first failed call's."""

    arch: str
    num_sms: int
    take: Callable[[Launch], None]
    rank: int = 0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        if self.arch not in CAPABILITIES:
            raise SimError(f"arch = {self.arch!r}: must be one of {', '.join(CAPABILITIES)}")

    def attribute(self, number: int) -> int:
        major, minor = CAPABILITIES[self.arch]
        return {_SMS: self.num_sms, _SMEM: 48 * 1024, _SMEM_OPT_IN: SMEM_MAX, _MAJOR: major, _MINOR: minor}.get(number, 0)


SUCCESS, UNKNOWN_ERROR = 0, 999
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6
_OUT_INT, _OUT_POINTER = POINTER(c_int), POINTER(c_void_p)
_LOAD = ctypes.CFUNCTYPE(c_int, c_void_p)
_LOAD_TO_DEVICE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
_IGNORED = (
    "_cudaDeviceSynchronize", "_cudaFuncSetAttribute", "_cudaKernelSetAttributeForDevice", "_cudaLibraryUnload", "_cudaSetDevice",
    "_cudaStreamSynchronize",
)  # fmt: skip
_WORDS = (c_void_p,) * 6  # Enough for the arguments of what is ignored.


class _Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))

    def sizes(self) -> Dim3:
        return self.x, self.y, self.z


class _Attribute(ctypes.Structure):
    """cudaLaunchAttribute; its value is a union of 64 bytes."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", _Dim3), ("rest", c_uint * 13))


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = (
        ("grid", _Dim3), ("block", _Dim3), ("dynamic_smem", c_size_t), ("stream", c_void_p), ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    )  # fmt: skip


class HostModule:
    """The kernels of one compiled host function. `ptx` is set when the compiler is done, before the first call."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device, self.ptx = device, ""
        self._kernels: list[str] = []
        self.symbols: dict[str, Any] = {
            "cuda_dialect_init_library_once": self._call(self._load_once, c_void_p, _LOAD, _LOAD_TO_DEVICE),
            "_cudaLibraryLoadData": self._call(lambda library, *_: _store(library, 1), _OUT_POINTER, c_void_p, *_WORDS),
            "_cudaLibraryGetKernel": self._call(self._get_kernel, _OUT_POINTER, c_void_p, c_char_p),
            "_cudaGetDevice": self._call(lambda out: _store(out, 0), _OUT_INT),
            "_cudaGetDeviceCount": self._call(lambda out: _store(out, 1), _OUT_INT),
            "_cuDeviceGet": self._call(_store, _OUT_INT, c_int),
            "_cudaDeviceGetAttribute": self._call(
                lambda out, number, _: _store(out, self.device.attribute(number)), _OUT_INT, c_int, c_int
            ),
            "_cuKernelGetAttribute": self._call(lambda out, *_: _store(out, 0), _OUT_INT, c_int, c_void_p, c_int),
            "_cudaLaunchKernelEx": self._call(self._launch, POINTER(_Config), c_void_p, _OUT_POINTER),
            "_cuTensorMapEncodeTiled": self._call(self._encode, c_void_p, c_int, c_uint, *(c_void_p,) * 5, *(c_int,) * 4),
            **{name: self._call(lambda *_: None, *_WORDS) for name in _IGNORED},
        }

    def _call(self, answer: Callable[..., None], *types: Any) -> Any:
        def run(*arguments: Any) -> int:
            try:
                answer(*arguments)
            except BaseException as error:
                self.device.error = self.device.error or error
                return UNKNOWN_ERROR
            return SUCCESS

        return ctypes.CFUNCTYPE(c_int, *types)(run)

    def _load_once(self, _: int, load: Callable[..., int], load_to_device: Callable[..., int]) -> None:
        """What holds the library's handle stays null: nobody asks the driver to unload it."""
        loaded = c_void_p()
        if not self._kernels and (load(ctypes.addressof(loaded)) or load_to_device(ctypes.addressof(loaded), 0)):
            raise SimError("the kernels of a host function could not be loaded")

    def _get_kernel(self, out: Any, _: int, name: bytes) -> None:
        self._kernels.append(name.decode())
        out[0] = len(self._kernels)

    def _encode(self, out: int, *arguments: Any) -> None:
        ctypes.memmove(out, encode_tiled(*arguments).encode(), DESCRIPTOR_BYTES)

    def _launch(self, config: Any, kernel: int, arguments: Any) -> None:
        asked = config.contents
        if not self.ptx:
            raise SimError("the DSL kept no PTX of a kernel that is launched")
        program = load(self.ptx, self._kernels[kernel - 1])
        attributes = [asked.attributes[i] for i in range(asked.count)]
        clusters = [one.value.sizes() for one in attributes if one.id == _CLUSTER_DIMENSION]
        early = any(one.id == _PROGRAMMATIC_SERIALIZATION and one.value.x for one in attributes)
        shape = asked.grid.sizes(), asked.block.sizes(), clusters[0] if clusters else (1, 1, 1), asked.dynamic_smem
        self.device.take(Launch(*shape, argument_bytes(program, arguments), program, rank=self.device.rank, early=early))


def _store(out: Any, value: int) -> None:
    out[0] = value


def argument_bytes(program: Program, arguments: Any) -> tuple[bytes, ...]:
    """What the host's pointers to arguments point at, in the order and sizes of the kernel's parameters."""
    return tuple(ctypes.string_at(arguments[i], one.size) for i, one in enumerate(program.kernel.parameters))


def encode_tiled(*arguments: Any) -> TensorMap:
    """The tensor map of a call of `cuTensorMapEncodeTiled`, of whose arguments the first is left out; arrays are addresses of uint64 (dims,
    strides) and uint32. Raises SimError for what is not modeled, ValueError where a limit of the hardware is broken."""
    data_type, rank, address, dims, strides, box, element_strides, interleave, swizzle, l2_promotion, oob_fill = arguments
    dtype = next((one for one in TensorMapDtype if one.driver_code == data_type), None)
    steps = (ctypes.c_uint32 * rank).from_address(element_strides)
    for field, value, allowed in (
        ("tensorDataType", data_type, dtype is not None),
        ("elementStrides", list(steps), all(step == 1 for step in steps)),
        ("interleave", interleave, interleave == 0),
        ("swizzle", swizzle, swizzle < len(SWIZZLES)),
        ("oobFill", oob_fill, oob_fill == 0),
    ):
        if not allowed:
            raise SimError(f"cuTensorMapEncodeTiled: {field} = {value} is not modeled")
    assert dtype is not None
    return TensorMap(
        address=address or 0,
        dtype=dtype,
        dims=tuple((ctypes.c_uint64 * rank).from_address(dims)),
        strides=tuple((ctypes.c_uint64 * (rank - 1)).from_address(strides)) if strides and rank > 1 else (),
        box=tuple((ctypes.c_uint32 * rank).from_address(box)),
        swizzle=SWIZZLES[swizzle],
        l2_promotion=L2_PROMOTIONS[l2_promotion],
    )


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def launches_on(device: SimulatedDevice) -> Iterator[None]:
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
        for option, value in ((KeepPTX, True), (DumpDir, folder), (GenerateLineInfo, True)):
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
        load = function._load_cuda_library
        function._load_cuda_library = lambda: load()[:0]  # else a GPU's driver is asked to unload what is no library, and crashes
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
