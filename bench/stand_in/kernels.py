"""Kernels that are loaded and launched through the CUDA driver: the PTX that a cubin was made of runs in the simulator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from megamoe_dsl.sim import Launch, load
from megamoe_dsl.sim.host.module import argument_bytes, encode_tiled
from megamoe_dsl.sim.program import Program

CLUSTER_DIMENSION = 4  # CUlaunchAttributeID


@dataclass
class Kernels:
    """ptx      of every cubin that may be loaded
    num_sms  of the GPU: of CTAs that wait for one another each has one to itself
    launch   takes a launch, in torch's current stream
    """

    num_sms: int
    launch: Callable[[Launch], None]
    ptx: dict[bytes, str] = field(default_factory=dict)

    def answers(self) -> dict[str, Any]:
        """Functions of the driver, by name."""
        return {
            "cuLibraryLoadData": lambda cubin, *_: self.ptx[bytes(cubin)],
            "cuLibraryGetKernel": lambda ptx, name: load(ptx, name.decode()),
            "cuKernelGetFunction": lambda program: program,
            "cuFuncSetAttribute": lambda *_: None,
            "cuOccupancyMaxActiveClusters": lambda _, config: self.num_sms // cluster_of(config),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": 1,
            "cuLaunchKernelEx": self._launch,
            "cuTensorMapEncodeTiled": encode,
        }

    def _launch(self, config: Any, program: Program, arguments: int, _: int) -> None:
        pointers = (ctypes.c_void_p * len(program.kernel.parameters)).from_address(arguments)
        self.launch(
            Launch(
                grid=(config.gridDimX, config.gridDimY, config.gridDimZ),
                block=(config.blockDimX, config.blockDimY, config.blockDimZ),
                cluster=(cluster_of(config), 1, 1),
                dynamic_smem=config.sharedMemBytes,
                args=argument_bytes(program, pointers),
                program=program,
            )
        )


def cluster_of(config: Any) -> int:
    """CTAs of a cluster of a CUlaunchConfig."""
    sizes = [one.value.clusterDim.x for one in config.attrs if int(one.id) == CLUSTER_DIMENSION]
    return sizes[0] if sizes else 1


def encode(data_type: Any, rank: int, address: Any, dims: Any, strides: Any, box: Any, steps: Any, *enums: Any) -> Any:
    """What cuda-bindings makes of a tensor map: an object with its sixteen words."""
    wide = [(ctypes.c_uint64 * max(1, len(one)))(*map(int, one)) for one in (dims, strides)]
    narrow = [(ctypes.c_uint32 * len(one))(*map(int, one)) for one in (box, steps)]
    places = [ctypes.addressof(one) for one in (*wide, *narrow)]
    table = encode_tiled(int(data_type), rank, int(address), *places, *map(int, enums)).encode()
    return SimpleNamespace(opaque=[int.from_bytes(table[i : i + 8], "little") for i in range(0, len(table), 8)])
