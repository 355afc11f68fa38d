"""A compiled kernel on a GPU: the CUDA driver loads and launches the cubin on torch's current stream, without the DSL."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any

import torch
from cuda.bindings import driver

from ..artifact.artifact import Artifact
from ..config_error import require
from ..hardware.tensor_map import DESCRIPTOR_BYTES, L2_PROMOTIONS, SWIZZLES, TensorMap
from ..kernels.kernel import ArgumentSpec
from ..kernels.registry import kernel_of

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
        """Restores all arguments, unless `saved` was restored last: arguments that a caller sets one by one then keep their values, so the
        caller sets them for every launch."""
        if saved is not self._restored:
            ctypes.memmove(self._start, saved, len(saved))
            self._restored = saved

    def forget(self) -> None:
        """Makes the next `restore` write all arguments."""
        self._restored = b""


LAUNCHES = RLock()
"""Held by a call of `moe`, `top_experts` or a GEMM while it writes arguments and launches: threads share arguments and workspace."""


class CudaError(RuntimeError):
    """A CUDA driver call failed; the message names the call and the driver's error."""


def call(function: Any, *arguments: Any) -> Any:
    """A driver call's result, or `CudaError`."""
    return check(function, function(*arguments))


def check(function: Any, returned: tuple[Any, ...]) -> Any:
    """The result in what a driver's function returned, or `CudaError`."""
    status, *result = returned
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        raise CudaError(f"{function.__name__}: {text.decode() if text else status}")
    return result[0] if len(result) == 1 else tuple(result)


def encode_tensor_map(tensor_map: TensorMap) -> bytes:
    """The 128 bytes that the driver makes of a tensor map."""
    one, rank, u32, u64 = tensor_map, tensor_map.rank, driver.cuuint32_t, driver.cuuint64_t
    encoded = call(
        driver.cuTensorMapEncodeTiled,
        driver.CUtensorMapDataType(one.dtype.driver_code),
        rank,
        one.address,
        list(map(u64, one.dims)),
        list(map(u64, one.strides)),
        list(map(u32, one.box)),
        [u32(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle(SWIZZLES.index(one.swizzle)),
        driver.CUtensorMapL2promotion(L2_PROMOTIONS.index(one.l2_promotion)),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)


def check_resident(config: Any, clusters: int) -> None:
    """Raises `ConfigError` unless all CTAs, which wait for one another, fit on the GPU at once.  Where GPCs have odd numbers of SMs, fewer
    clusters of two fit than half the SMs."""
    allowed = f"at most {clusters * config.cluster}: so many CTAs, in clusters of {config.cluster}, run at once on this GPU"
    require(clusters >= config.num_sms // config.cluster, "num_sms", config.num_sms, allowed)


def current_stream(device: int) -> int:
    """Handle of torch's current stream on a device, faster than torch.cuda.current_stream."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


def bind_context() -> None:
    """Makes the current device's context current if the thread has none, as autograd's threads before torch's first launch on them."""
    if not int(call(driver.cuCtxGetCurrent)):
        call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, torch.cuda.current_device()))


class CudaKernel:
    """A kernel loaded on the current device; raises `ConfigError` for clusters that do not fit on it.

    early      False: launches without PDL; for comparisons
    arguments  of the next launch; host threads take turns (`LAUNCHES`)
    spec       arguments without tensor maps
    """

    def __init__(self, artifact: Artifact, early: bool = True) -> None:
        self.artifact = artifact
        config, kernel = artifact.config, kernel_of(artifact.config)
        self.arguments, self.spec = ArgumentBlock(kernel.parameter_spec(config)), kernel.arguments(config)
        torch.cuda.current_stream()  # makes torch's context current
        self._device, self._stream = torch.cuda.current_device(), 0
        self._library = call(driver.cuLibraryLoadData, artifact.cubin, [], [], 0, [], [], 0)
        self._function = call(driver.cuKernelGetFunction, call(driver.cuLibraryGetKernel, self._library, artifact.entry.encode()))
        smem = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute, self._function, smem, artifact.dynamic_smem)
        self._launch = driver.CUlaunchConfig()
        self._launch.gridDimX, self._launch.gridDimY, self._launch.gridDimZ = config.num_sms, 1, 1
        self._launch.blockDimX, self._launch.blockDimY, self._launch.blockDimZ = config.num_threads, 1, 1
        self._launch.sharedMemBytes = artifact.dynamic_smem
        attributes = []
        if config.cluster > 1:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = config.cluster, 1, 1
            attributes.append(attribute)
        if kernel.early and early:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        self._launch.attrs, self._launch.numAttrs = attributes, len(attributes)
        if kernel.resident:
            check_resident(config, self._clusters_at_once())

    def _clusters_at_once(self) -> int:
        """Clusters, or CTAs if there are none, that run at once on an idle GPU."""
        if self.artifact.config.cluster > 1:
            clusters: int = call(driver.cuOccupancyMaxActiveClusters, self._function, self._launch)
            return clusters
        here = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        threads, smem = self._launch.blockDimX, self._launch.sharedMemBytes
        per_sm: int = call(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor, self._function, threads, smem)
        return here * per_sm

    def __call__(self, arguments: Sequence[int]) -> None:
        """Launches with these arguments on torch's current stream."""
        self.arguments.fill(arguments)
        self.launch()

    def launch(self) -> None:
        """Launches on torch's current stream."""
        stream = current_stream(self._device)
        if stream != self._stream:
            self._launch.hStream = self._stream = stream
        returned = driver.cuLaunchKernelEx(self._launch, self._function, self.arguments.address, 0)
        if returned[0]:
            check(driver.cuLaunchKernelEx, returned)


def fill(kernel: CudaKernel, arguments: Mapping[str, int]) -> ArgumentBlock:
    """Sets the next launch's arguments by name, of a kernel without tensor maps."""
    kernel.arguments.fill(kernel.spec.pack(**arguments))
    return kernel.arguments
