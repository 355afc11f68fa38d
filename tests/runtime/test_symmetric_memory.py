"""A group's buffer: what ranks must agree on, and who waits for whom when it is freed."""

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megamoe_dsl.arch import SM90
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.layouts.region import Region
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime import symmetric_memory
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.rank_kernel import RankKernel
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.runtime.watchdog import WatchdogError, new_record

PROBLEM = Problem(256, 128, 4, 2, 2, 8, recipe="fp8xfp8")


@pytest.mark.parametrize(("name", "theirs"), [("problem", (replace(PROBLEM, hidden=512), None)), ("pool_rows", (PROBLEM, 256))])
def test_every_rank_brings_the_same(name: str, theirs: tuple[Problem, int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(given: list[object], own: object, group: object) -> None:
        given[:] = [own, theirs]

    monkeypatch.setattr(symmetric_memory, "require_cuda", lambda device: None)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    with pytest.raises(ProblemError, match=rf"^{name} = .*: must be the same on every rank; rank 1 has (256|Problem.*hidden=512)"):
        SymmetricBuffer.allocate(PROBLEM, group=object())


def test_a_group_maps_every_ranks_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeroed before any other rank writes into it, at the place within the mapped memory that it has; multicast is off unless a user's
    variable says otherwise."""
    events: list[object] = []
    for name, value in (("NCCL_NVLS_ENABLE", "1"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST")
    monkeypatch.setattr(TorchOnCpu.cuda, "synchronize", lambda: events.append("device"))
    memory = torch.full((1 << 24,), 7, dtype=torch.uint8)
    addresses = [1 << 40, memory.data_ptr(), 3 << 40]
    problem = replace(PROBLEM, num_experts=6, num_ranks=3)

    def empty(size: int, **_: object) -> torch.Tensor:
        return memory[512 : 512 + size]

    def barrier(group: object) -> None:
        events.append(group)
        assert not memory[512 : 512 + buffer_bytes].any()

    def gather(given: list[object], own: object, group: object) -> None:
        given[:] = [own] * 3

    handle = SimpleNamespace(buffer_ptrs=addresses, get_buffer=lambda *given: given)
    stand_ins = {"require_cuda": lambda device: None, "process_group": lambda problem, group: group, "torch": TorchOnCpu()}
    for name, one in stand_ins.items():
        monkeypatch.setattr(symmetric_memory, name, one)
    for name, one in {"all_gather_object": gather, "get_rank": lambda group: 1, "barrier": barrier}.items():
        monkeypatch.setattr(dist, name, one)
    monkeypatch.setattr(torch.distributed._symmetric_memory, "empty", empty)
    monkeypatch.setattr(torch.distributed._symmetric_memory, "rendezvous", lambda sym, group: {"group": handle}[group])
    buffer_bytes = symmetric_buffer(problem, SM90, 256).size
    found = SymmetricBuffer.allocate(problem, SM90, group="group", pool_rows=256)
    assert (found.num_bytes, found.rank, found.group, found.pool_rows, events) == (buffer_bytes, 1, "group", 256, ["device", "group"])
    assert (os.environ["NCCL_NVLS_ENABLE"], os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"]) == ("1", "1")
    assert found.sym.data_ptr() == memory.data_ptr() + 512
    assert found.peers.tolist() == [address + 512 for address in addresses]
    assert found.everywhere == [(rank, (buffer_bytes,), torch.uint8, 512) for rank in range(3)]


class TorchOnCpu:
    """torch, whose CUDA device is the CPU."""

    cuda = SimpleNamespace(current_device=lambda: 0, synchronize=lambda: None)

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def device(self, kind: str, index: int) -> torch.device:
        assert (kind, index) == ("cuda", 0)
        return torch.device("cpu")


def test_a_group_of_another_size_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda group: 4)
    with pytest.raises(ProblemError, match="num_ranks = 2: must be the size of the process group, 4"):
        symmetric_memory.process_group(PROBLEM, "group")


@pytest.mark.parametrize(("capability", "name"), [((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((10, 3), "sm_100a"), ((8, 0), None)])
def test_the_architecture_of_a_gpu(capability: tuple[int, int], name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric_memory, "require_cuda", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    if name is not None:
        assert symmetric_memory.device_arch(torch.device("cuda")).name == name
        return
    with pytest.raises(ProblemError, match=r"device = 'cuda, compute capability 8.0': must be a kernel's"):
        symmetric_memory.device_arch(torch.device("cuda"))


def test_a_group_without_gpus_and_a_pool_of_no_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_gather_object", lambda *given, group: pytest.fail("asked the ranks"))
    with pytest.raises(ProblemError, match="device = 'cuda': must be a CUDA device, and torch finds none here"):
        SymmetricBuffer.allocate(PROBLEM, group="group")
    alone = replace(PROBLEM, num_ranks=1)
    found = SymmetricBuffer.allocate(alone, SM90, device="cpu", pool_rows=256)
    assert (found.pool_rows, found.num_bytes) == (256, symmetric_buffer(alone, SM90, 256).size)
    for arch in (SM90, None):
        with pytest.raises(ConfigError, match="pool_rows = -1: must be"):
            SymmetricBuffer.allocate(alone, arch, device="cpu", pool_rows=-1, region=Region.stack("own"))


@pytest.mark.parametrize("given", ["", "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST"])
def test_multicast_is_off_in_both_libraries(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    for name in off:
        monkeypatch.setenv(name, "a user's")
        if name != given:
            monkeypatch.delenv(name)
    symmetric_memory.disable_multicast()
    assert {name: os.environ[name] for name in off} == {name: "a user's" if name == given else value for name, value in off.items()}


def test_a_kernel_reads_its_record_in_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", lambda *_, **given: given)
    assert [new_record(torch.device(name))["pin_memory"] for name in ("cuda", "cpu")] == [True, False]  # type: ignore[call-overload]


def test_several_ranks_have_no_buffer_without_a_group() -> None:
    with pytest.raises(ProblemError, match="group = None: must be a process group of num_ranks = 2 ranks, and there is none"):
        SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu")


def test_who_did_not_wait_is_asked_of_the_groups_store(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: "store")
    monkeypatch.setattr(symmetric_memory, "silent_ranks", lambda *given: asked.extend(given) or [0])
    group = SimpleNamespace(group_name="five")
    for of_group, silent in ((group, [0]), (None, None)):
        buffer = SymmetricBuffer(PROBLEM, 1, torch.zeros(8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), group=of_group)
        assert buffer.silent_ranks() == silent
    assert asked == ["store", "megamoe_dsl watchdog five", 1, 2]


def kernel_on(symmetric: SymmetricBuffer, record: Any) -> Any:
    return SimpleNamespace(symmetric=symmetric, buffers=record, memory=record)


@pytest.mark.parametrize("wait", [RankKernel.synchronize, EpMoE.synchronize])
def test_who_synchronizes_names_the_wait(wait: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def trapped() -> None:
        raise RuntimeError("unspecified launch failure")

    buffer = SymmetricBuffer(PROBLEM, 1, torch.zeros(8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    wait(kernel_on(buffer, SimpleNamespace()))
    monkeypatch.setattr(torch.cuda, "synchronize", trapped)
    buffer.sym = SimpleNamespace(is_cuda=True)  # type: ignore[assignment]
    monkeypatch.setattr(SymmetricBuffer, "silent_ranks", lambda buffer: [0, 3])
    with pytest.raises(WatchdogError, match=r"^rank 1 waited; rank 0, 3 did not report a wait within 5 s$"):
        wait(kernel_on(buffer, SimpleNamespace(watchdog_message=lambda: "rank 1 waited")))


def test_to_free_a_gpus_buffer_waits_for_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("device"))
    monkeypatch.setattr(dist, "barrier", lambda group: waited.append(group))
    buffer = SymmetricBuffer(PROBLEM, 0, torch.zeros(8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), group="group")
    buffer.sym = SimpleNamespace(is_cuda=True)  # type: ignore[assignment]
    buffer.close()
    assert waited == ["device", "group"] and buffer.num_bytes == len(buffer.peers) == 0


def test_ranks_free_it_together_and_survivors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(dist, "barrier", waited.append)
    for alone in (True, False):
        given = PROBLEM, 0, torch.zeros(8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
        buffer = SymmetricBuffer(*given, group="group", _handle=(mapped := torch.zeros(1)))
        kept = weakref.ref(mapped)
        del mapped
        buffer.close(alone=alone)
        assert buffer.num_bytes == 0 and kept() is None and waited == ([] if alone else ["group"])


def test_kernels_on_a_buffer_have_one_grid() -> None:
    """Which is forgotten where making the first one fails, or is interrupted."""
    buffer = SymmetricBuffer.allocate(Problem(256, 128, 4, 2, recipe="fp8xfp8"), SM90, device="cpu")
    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error), buffer.binding(8):
            raise error
    with buffer.binding(4), buffer.binding(4):
        pass
    for other in (2, 6):
        with pytest.raises(ProblemError, match=f"num_sms = {other}: must be 4, as in every other kernel"), buffer.binding(other):
            pytest.fail("bound")
