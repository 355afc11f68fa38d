"""What reaches a GPU's driver, with a driver that only listens: widths as in the PTX, this rank's number, addresses within allocations."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import make_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.cases import random_weights
from megamoe_dsl.hardware.tensor_map import TensorMap
from megamoe_dsl.kernels.kernel import ArgumentSpec, KernelConfig
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime import cuda_kernel, rank_kernel, symmetric_memory
from megamoe_dsl.runtime.cuda_kernel import ArgumentBlock, CudaKernel
from megamoe_dsl.runtime.device_gemm import LoadedGemm
from megamoe_dsl.runtime.preparation import grid_target
from megamoe_dsl.runtime.rank_kernel import RankKernel
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from simulated_gpu import values_of

MOE = Problem(256, 128, 4, 2, num_ranks=2, max_tokens_per_rank=8, recipe="fp8xfp8")
CONFIG = choose(MOE, Target.typical("sm_90a", 2), 8)
CONFIGS = [
    CONFIG,
    choose(Problem(256, 128, 4, 2, max_tokens_per_rank=8), Target.typical("sm_100a", 2), 8),
    PreDispatchConfig(MOE, 2, "sm_90a"),
]
PARAMETER = re.compile(r"\.param \.[bus](\d+) ")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every launch the address of its arguments' addresses."""
    found: list[int] = []

    def launch(config: Any, function: Any, table: int, extra: int) -> tuple[int]:
        found.append(table)
        return (0,)

    monkeypatch.setattr(cuda_kernel, "call", lambda function, *arguments: 1000)  # a handle, or clusters that run at once
    monkeypatch.setattr(cuda_kernel.driver, "cuLaunchKernelEx", launch)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_kernel, "current_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=131))
    return found


def passed(table: int, widths: Sequence[int]) -> tuple[int, ...]:
    """What a driver reads of each argument, of so many bytes, at the addresses in a table."""
    addresses = (ctypes.c_void_p * len(widths)).from_address(table)
    return tuple(int.from_bytes(ctypes.string_at(at, width), "little") for at, width in zip(addresses, widths, strict=True))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_arguments_are_as_wide_as_the_kernels_parameters(config: KernelConfig, launches: list[int]) -> None:
    artifact = compile_kernel(config)
    declared = [int(bits) // 8 for bits in PARAMETER.findall(artifact.ptx[: artifact.ptx.index("{")])]
    assert len(declared) == len(artifact.kernel.arguments(config).names) and {4, 8} <= set(declared)
    largest = [(1 << 8 * width - 1) - 1 - at for at, width in enumerate(declared)]
    kernel = CudaKernel(artifact)
    kernel(largest)
    (table,) = launches
    assert passed(table, declared) == tuple(largest)
    assert list(artifact.kernel.arguments(config).widths) == declared


def test_a_launch_has_the_number_of_its_rank(launches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_kernel, "encode_tensor_map", TensorMap.encode)
    artifact = Artifact(CONFIG, ".entry kernel", b"", 0.0)
    spec = artifact.kernel.arguments(CONFIG)
    for rank in range(2):
        sym = torch.zeros(symmetric_buffer(MOE, SM90).size, dtype=torch.uint8)
        peers = torch.tensor([7, 8])
        kernel = RankKernel(artifact, SymmetricBuffer(MOE, rank, sym, peers), random_weights(MOE, rank, 0))
        kernel(torch.empty(3, MOE.hidden, dtype=torch.bfloat16))
        given = dict(zip(spec.names, passed(launches.pop(), spec.widths), strict=True))
        assert (given["rank"], given["num_tokens"]) == (rank, 3)
        assert (given["sym"], given["peers"]) == (sym.data_ptr(), peers.data_ptr())
    with pytest.raises(ProblemError, match="pool_rows = None: must be 128, as of the symmetric buffer"):
        RankKernel(artifact, SymmetricBuffer(MOE, 0, sym, peers, pool_rows=128), random_weights(MOE, 0, 0))


def test_peers_are_the_buffers_not_the_allocations_they_lie_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch gives the addresses of allocations; a buffer begins at the same offset in each."""
    from torch.distributed import _symmetric_memory as torch_symmetric_memory

    offset, rank, cpu = 512, 1, torch.device("cpu")
    size = symmetric_buffer(MOE, SM90).size
    allocation = torch.ones(offset + size, dtype=torch.uint8)
    bases = [1 << 40, allocation.data_ptr()]
    for name, value in {"is_initialized": True, "get_world_size": 2, "get_rank": rank, "barrier": None}.items():
        monkeypatch.setattr(dist, name, lambda *_, value=value: value)
    monkeypatch.setattr(dist, "all_gather_object", lambda found, own, group: found.__setitem__(slice(None), [own] * 2))
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=None))
    monkeypatch.setattr(torch_symmetric_memory, "empty", lambda *_, **options: allocation[offset:])
    monkeypatch.setattr(torch_symmetric_memory, "rendezvous", lambda *_: SimpleNamespace(buffer_ptrs=bases))
    monkeypatch.setattr(symmetric_memory, "require_cuda", lambda device: device)
    monkeypatch.setattr(torch, "device", lambda *_: cpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    symmetric = SymmetricBuffer.allocate(MOE, SM90)
    assert symmetric.peers.tolist() == [(1 << 40) + offset, symmetric.sym.data_ptr()]
    assert symmetric.rank == rank and not symmetric.sym.any() and allocation[:offset].all()


@pytest.mark.parametrize(("sms", "reserved", "used"), [(132, 0, 132), (131, 0, 130), (132, 1, 130), (132, 129, 2)])
def test_grids_are_even(sms: int, reserved: int, used: int) -> None:
    """CTAs work in pairs, or may."""
    assert grid_target(Target(SM90, sms), reserved).num_sms == used


@pytest.mark.parametrize("kind", ["Int16", int, "Float32"])
def test_an_argument_of_another_type_is_refused(kind: Any) -> None:
    declared = make_dataclass("Declared", [("rows", "Int32"), ("scale", kind)])
    with pytest.raises(TypeError, match=r"^Declared\.scale: (Int16|int|Float32), must be one of Int32, Int64, TensorMap$"):
        ArgumentSpec.of(declared)
    assert ArgumentSpec.of(make_dataclass("Declared", [("rows", "Int32"), ("d", "Int64")])).arguments == (("rows", "Int32"), ("d", "Int64"))


def test_saved_arguments_come_back_after_others_were_filled_in() -> None:
    block = ArgumentBlock(ArgumentSpec((("m", "Int32"), ("d", "Int64"))))
    block.fill((3, 1 << 40))
    saved = block.save()
    block.restore(saved)
    block.fill((5, 7))
    block.restore(saved)
    assert values_of(block) == (3, 1 << 40)


@pytest.mark.parametrize("fails", [False, True])
def test_an_address_that_moved_is_moved_for_one_launch(fails: bool) -> None:
    """The next launch of what was prepared has what was prepared, also after one that failed."""
    seen: list[tuple[int | bytes, ...]] = []

    def launch() -> None:
        seen.append(values_of(block))
        if fails and len(seen) == 1:
            raise cuda_kernel.CudaError("cuLaunchKernelEx")

    block = ArgumentBlock(ArgumentSpec((("a", "Int64"), ("counter", "Int64"), ("rows", "Int32"))))
    block.fill((1, 2, 3))
    prepared = block.save()
    gemm: Any = object.__new__(LoadedGemm)
    gemm.config, gemm._counters = SimpleNamespace(prefetch_weights=False), None
    gemm._kernel = SimpleNamespace(arguments=block, launch=launch)
    for moved in ({"a": 7, "rows": 8}, {}, {"rows": 9}, {"a": 6}):
        with suppress(cuda_kernel.CudaError):
            gemm.launch(prepared, 5, **moved)
    assert seen == [(7, 5, 8), (1, 5, 3), (1, 5, 9), (6, 5, 3)]
