"""GPUs for tests of host code: their driver runs nothing, and keeps what every launch is given, with names in the place of addresses.

    gpu.call(moe, x=x, w1=w1, ..)      the launches of the call; its result is `y`

Tensors lie in the host's memory and say that they are on GPU 0, or on GPU 1 if they are `far`: a call takes milliseconds, and nothing is
compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda.bindings import driver
from torch.overrides import TorchFunctionMode

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.kernels.gemm.family import GemmKernel
from megamoe_dsl.runtime import (
    device_gemm,
    device_gradients,
    expert_gradients,
    expert_plan,
    experts,
    gemm,
    k_grouped_gemm,
    tile_counters,
    top_experts,
)
from megamoe_dsl.target import find_arch

OK = driver.CUresult.CUDA_SUCCESS
SMS = 4
LOWEST_ADDRESS = 1 << 40
TABLE = 128
"""Bytes of a tensor map."""
EARLY = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
CLUSTER = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


NEW = {torch.empty: torch.zeros, torch.empty_like: torch.zeros_like, torch.Tensor.new_empty: torch.Tensor.new_zeros}
"""What makes a tensor, and what makes one that holds the same in every run."""
WAITS = [getattr(torch.Tensor, name) for name in ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__")]
"""What waits for the device."""


class OnGpus(TorchFunctionMode):
    """Torch's functions, with tensors of the host on GPUs: on the second one those whose storage is `far`.  As on a GPU, nothing waits for
    the device during a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.far: set[int] = set()
        self.made: list[torch.Tensor] = []
        self.alive: list[Any] = []  # what a call computes: no address comes back within it
        self.capturing: Callable[[], bool] = lambda: False

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if function in (torch.Tensor.device.__get__, torch.Tensor.get_device):  # type: ignore[attr-defined]
            number = int(args[0].untyped_storage().data_ptr() in self.far)
            return number if function is torch.Tensor.get_device else torch.device("cuda", number)
        if function in WAITS and self.capturing():
            raise RuntimeError(f"{function.__name__} during a capture")
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        kwargs = {
            name: torch.device("cpu") if name == "device" else value for name, value in (kwargs or {}).items() if name != "pin_memory"
        }
        found = NEW.get(function, function)(*(torch.device("cpu") if isinstance(one, torch.device) else one for one in args), **kwargs)
        self.alive.append(found)
        if function in NEW:
            self.made.append(found)
        return found


@dataclass(frozen=True)
class Launched:
    """A launch: the kernel's configuration, the stream, CTAs, threads of each, CTAs of a cluster and bytes of shared memory, and the
    arguments by name; addresses are names of tensors with offsets."""

    config: Any
    stream: int
    early: bool
    shape: tuple[int, int, int, int]
    arguments: dict[str, Any] = field(hash=False)


@dataclass
class RecordedGpu:
    """stream, capture, device   torch's current ones, a number each; None: no graph is captured
    on_launch                 called before each launch is noted
    """

    mode: OnGpus
    stream: int = 0
    capture: int | None = None
    device: int = 0
    on_launch: Callable[[Artifact], None] = lambda artifact: None
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    _maps: list[tuple[Any, ...]] = field(default_factory=list)
    _raw: list[tuple[Launched, dict[str, int | bytes]]] = field(default_factory=list)

    def show(self, **tensors: Any) -> None:
        """These tensors have these names from now on; earlier ones of a name come `before` it."""
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.Tensor):
                before = self.tensors.pop(name, tensor)
                if before is not tensor:
                    self.tensors[f"{len(self.tensors)} before {name}"] = before
                self.tensors[name] = tensor

    def call(self, function: Callable[..., Any], **arguments: Any) -> list[Launched]:
        """The launches of a call; its results are y, or `y0` and more."""
        self._raw.clear()
        self.mode.made.clear()
        self.mode.alive.clear()
        self.show(**arguments)
        found = function(**arguments)
        self.show(**({f"y{number}": one for number, one in enumerate(found)} if isinstance(found, tuple) else {"y": found}))
        return self.launched()

    def launched(self) -> list[Launched]:
        """All launches since the last call began."""
        spans = self._spans()
        return [replace(launched, arguments=self._named(given, spans)) for launched, given in self._raw]

    def _spans(self) -> list[tuple[str, int, int]]:
        """Names of tensors, the latest first, with their first address and that behind their storage; then those that the call made."""
        found = []
        with torch._C.DisableTorchFunction():
            made = [(f"{one.dtype} {tuple(one.shape)}, made", one) for one in self.mode.made]
            for name, tensor in [*reversed(self.tensors.items()), *made]:
                if start := tensor.data_ptr():
                    storage = tensor.untyped_storage()
                    found.append((name, start, max(start + 1, storage.data_ptr() + storage.nbytes())))
        return found

    def _named(self, given: dict[str, int | bytes], spans: list[tuple[str, int, int]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in given.items():
            if isinstance(value, bytes):
                address, *others = self._maps[int.from_bytes(value[:8], "little")]
                found[name] = (name_of(address, spans), *others)
            else:
                found[name] = name_of(value, spans)
        return found

    def _launch(self, launch: Any, artifact: Artifact, table: int, _: int) -> tuple[Any]:
        self.on_launch(artifact)
        spec = artifact.kernel.parameter_spec(artifact.config)
        places = (ctypes.c_void_p * len(spec.names)).from_address(table)
        values: dict[str, int | bytes] = {}
        for name, width, place in zip(spec.names, spec.widths, places, strict=True):
            read = ctypes.string_at(place, width)
            values[name] = read if width == TABLE else int.from_bytes(read, "little")
        clusters = [one.value.clusterDim.x for one in launch.attrs if one.id == CLUSTER]
        shape = launch.gridDimX, launch.blockDimX, *(clusters or [1]), launch.sharedMemBytes
        early = any(one.id == EARLY for one in launch.attrs)
        self._raw.append((Launched(artifact.config, int(launch.hStream), early, shape, {}), values))
        return (OK,)

    def _encode(self, kind: Any, rank: int, address: Any, *others: Any) -> tuple[Any, Any]:
        dims, strides, box, steps, *enums = others
        self._maps.append((int(address), int(kind), *(tuple(map(int, one)) for one in (dims, strides, box, steps)), *map(int, enums)))
        return OK, SimpleNamespace(opaque=[len(self._maps) - 1] + [0] * (TABLE // 8 - 1))


def name_of(value: int, spans: list[tuple[str, int, int]]) -> str | int:
    """The latest tensor that has this address, and an offset; a number that is no address is what it is."""
    found = ((name, value - start) for name, start, end in spans if start <= value < end)
    name, offset = next(found, ("elsewhere" if is_address(value) else value, 0))
    return f"{name} + {offset}" if offset else name


def is_address(value: int) -> bool:
    """Some processes have their heap at low addresses."""
    return value >= LOWEST_ADDRESS or heap_start() <= value < heap_end()


@cache
def heap_start() -> int:
    lines = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
    return int(next(lines, "0-").partition("-")[0], 16)


heap_end = partial(ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_ssize_t)(("sbrk", ctypes.CDLL(None))), 0)


@cache
def _chosen(family: type[GemmKernel], problem: Any, target: Any, rows: int, fields: tuple[tuple[str, Any], ...]) -> Any:
    return _CHOOSE(family(), problem, target, rows, **dict(fields))


_CHOOSE = GemmKernel.choose


def forget() -> None:
    """What a process keeps of earlier calls."""
    for cached in (expert_plan.scratch, expert_plan.layer_kernels, expert_plan.device_experts):
        cached.cache_clear()
    tile_counters.tile_counters.cache_clear()
    tile_counters.decode_memory.cache_clear()
    for cached in (device_gemm.gemm_kernel, device_gemm.loaded_gemm, device_gemm.loaded_kernel, device_gradients._problems):
        cached.cache_clear()
    for plans in (experts._PLANS, experts._ROUTED, gemm._PLANS, top_experts._PLANS):
        plans.clear()


@contextmanager
def recorded_gpu(arch: str = "sm_90a") -> Iterator[RecordedGpu]:
    """A GPU that has run nothing yet; its kernels are not compiled."""
    gpu, artifacts = RecordedGpu(OnGpus()), []
    gpu.mode.capturing = lambda: gpu.capture is not None
    scratch_of, decode_memory_of = expert_plan.Scratch.of, tile_counters.DecodeMemory.of

    def get(store: ArtifactStore, config: Any) -> Artifact:
        artifacts.append(Artifact(config, ".entry kernel", len(artifacts).to_bytes(4, "little"), 0.0))
        return artifacts[-1]

    def shown(scratch: Any, size: int, stream: int, capturing: bool) -> torch.Tensor:
        memory = scratch_of(scratch, size, stream, capturing)
        if all(memory is not one for one in gpu.tensors.values()):
            owner = "a capture" if capturing else f"stream {stream}"
            gpu.show(**{f"{'far ' * scratch._device.index}memory of {owner}": memory})
        return memory

    def shown_results(memory: Any, stream: int, capturing: bool) -> int:
        address = decode_memory_of(memory, stream, capturing)
        made = [one for one in memory.kept.values() if all(one is not other for other in gpu.tensors.values())]
        gpu.show(**{f"results {len(gpu.tensors)}": one for one in made})
        return address

    answers: dict[Any, dict[str, Any]] = {
        driver: {
            "cuLibraryLoadData": lambda cubin, *_: (OK, artifacts[int.from_bytes(cubin, "little")]),
            "cuLibraryGetKernel": lambda artifact, name: (OK, artifact),
            "cuKernelGetFunction": lambda artifact: (OK, artifact),
            "cuFuncSetAttribute": lambda *_: (OK,),
            "cuOccupancyMaxActiveClusters": lambda *_: (OK, SMS),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": lambda *_: (OK, 1),
            "cuLaunchKernelEx": gpu._launch,
            "cuTensorMapEncodeTiled": gpu._encode,
            "cuStreamGetCaptureInfo": lambda stream: (OK, None, gpu.capture, None),
            "cuCtxGetCurrent": lambda: (OK, 1),
        },
        torch.cuda: {
            "is_available": lambda: True,
            "current_stream": lambda *_: None,
            "current_device": lambda: gpu.device,
            "device_count": lambda: 2,
            "synchronize": lambda *_: None,
            "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=SMS),
            "get_device_name": lambda *_: "recorded",
            "get_device_capability": lambda *_: find_arch(arch).capabilities[0],
            "is_current_stream_capturing": lambda: gpu.capture is not None,
        },
        torch.Tensor: {"record_stream": lambda *_: None},
        torch._C: {"_cuda_getDevice": lambda: gpu.device, "_cuda_getCurrentRawStream": lambda index: gpu.stream},
        ArtifactStore: {"get": get},
        # In an operator a mode of torch is off.
        k_grouped_gemm: {"quantize_columns": k_grouped_gemm._quantize_on_gpu, "add_columns": k_grouped_gemm._add_on_gpu},
        expert_gradients: {"add_columns": k_grouped_gemm._add_on_gpu},
        expert_plan.Scratch: {"of": shown},
        tile_counters.DecodeMemory: {"of": shown_results},
        **{module: {"outside_pools": lambda make: make()} for module in (tile_counters, expert_plan)},  # a thread has no stand-in
        GemmKernel: {"choose": lambda family, *given, **fields: _chosen(type(family), *given, tuple(fields.items()))},
    }
    with pytest.MonkeyPatch.context() as patch, gpu.mode:
        for owner, functions in answers.items():
            for name, answer in functions.items():
                patch.setattr(owner, name, answer, raising=False)
        forget()
        gpu.show(counters=tile_counters.tile_counters(torch.device("cuda", 0)).memory)
        try:
            yield gpu
        finally:
            forget()
