"""A GPU for the runtime's tests: one rank whose kernels run in the simulator, on CPU tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch

from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact import store
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.hardware.tensor_map import TensorMap
from megamoe_dsl.quant import weight_names
from megamoe_dsl.runtime import inputs_stage, layer, rank_kernel, symmetric_memory
from megamoe_dsl.runtime.cuda_kernel import ArgumentBlock
from megamoe_dsl.sim import GlobalMemory, Launch, Simulator
from megamoe_dsl.target import Target

NUM_SMS = 4


def values_of(arguments: ArgumentBlock) -> tuple[int | bytes, ...]:
    """What a launch passes with these arguments as they are now."""
    values = [getattr(arguments.values, name) for name in arguments.names]
    return tuple(bytes(value) if isinstance(value, ctypes.Array) else value for value in values)


class SimulatedKernel:
    """In place of `CudaKernel`: each launch runs at once; `tensors` are all that it may touch, `launched` the configurations so far."""

    tensors: ClassVar[dict[str, torch.Tensor]] = {}
    launched: ClassVar[list[object]] = []

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.arguments = ArgumentBlock(artifact.kernel.parameter_spec(artifact.config))

    def __call__(self, arguments: Sequence[int]) -> None:
        self.arguments.fill(arguments)
        self.launch()

    def launch(self) -> None:
        config = self.artifact.config
        type(self).launched.append(config)
        memory = GlobalMemory()
        for name, tensor in self.tensors.items():
            if tensor.numel():
                memory.add(tensor, name=name, rank=0)
        shape = {"grid": (config.num_sms, 1, 1), "block": (config.num_threads, 1, 1), "cluster": (config.cluster, 1, 1)}
        launch = Launch(**shape, dynamic_smem=self.artifact.dynamic_smem, args=values_of(self.arguments), rank=0)
        assert not Simulator(self.artifact.ptx, memory).run([launch]).findings


@contextmanager
def simulated_gpu(patch: pytest.MonkeyPatch) -> Iterator[type[SimulatedKernel]]:
    """Kernels of layers made inside run in the simulator, which needs no assembler."""
    from ptx_of import artifact

    patch.setattr(store, "compile_kernel", artifact)
    patch.setattr(rank_kernel, "CudaKernel", SimulatedKernel)
    patch.setattr(rank_kernel, "encode_tensor_map", TensorMap.encode)
    patch.setattr(inputs_stage, "CudaKernel", SimulatedKernel)
    patch.setattr(layer, "gpu_target", lambda device: Target(SM90, NUM_SMS, "simulated"))
    patch.setattr(symmetric_memory, "device_arch", lambda device: SM90)
    SimulatedKernel.tensors, SimulatedKernel.launched = {}, []
    yield SimulatedKernel


def visible(moe: layer.MegaMoE, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the kernels of a layer touch, with y and inputs by name."""
    memory, weights = moe.memory, moe.memory.weights
    found = {"sym": memory.sym, "peers": moe.symmetric.peers, "stats": memory.stats, "watchdog": memory.watchdog}
    stages = [one for kernel in {id(k): k for k in moe.kernels.values()}.values() for one in getattr(kernel, "stages", [kernel.buffers])]
    found |= {f"maps{i}": buffers.maps for i, buffers in enumerate(stages)}
    found["results"] = stages[0].results  # of an unfused layer; else empty
    return found | {name: getattr(weights, name) for name in weight_names(moe.problem)} | tensors
