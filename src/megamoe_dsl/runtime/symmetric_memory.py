"""The symmetric buffer of a process group: one allocation per rank, mapped into every rank's address space.

Several layers of one `Problem` may share a buffer, as long as their launches follow one another on every rank in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from ..arch import ARCHES, Arch, arch_of_capability
from ..cuda_device import require_cuda, require_usable
from ..kernels.moe.layouts.symmetric import checked_pool_rows, symmetric_buffer
from ..kernels.registry import find_kernel
from ..layouts.region import Region
from ..problem import Problem, ProblemError
from .watchdog import name_silent, naming_the_wait, new_record, silent_ranks

MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def disable_multicast() -> None:
    """Turns NVLink multicast off.  Call it before the process group is made, when NCCL reads its variable; variables that the user has set
    stay as they are."""
    for name, value in MULTICAST_OFF.items():
        os.environ.setdefault(name, value)


def device_arch(device: torch.device) -> Arch:
    """The architecture of a GPU.  Raises `ProblemError` for a GPU without kernels, and for a device that is no GPU."""
    require_cuda(device)
    capability = torch.cuda.get_device_capability(device)
    arch = arch_of_capability(capability)
    if arch is None or arch.name not in find_kernel("mega_moe").configs:
        raise ProblemError("device", f"{device}, compute capability {capability[0]}.{capability[1]}", "a kernel's: 9.0, 10.0 or 10.3")
    return arch


def arch_of_recipe(problem: Problem) -> Arch:
    """The first architecture with kernels for a problem's recipe."""
    return ARCHES[next(arch for arch, names in find_kernel("mega_moe").recipes.items() if problem.recipe in names)]


def process_group(problem: Problem, group: Any) -> Any:
    """A group of torch.distributed, by default of all processes.  Raises `ProblemError` without one, or for a size other than num_ranks."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        how = "start the ranks with torchrun, and call torch.distributed.init_process_group"
        raise ProblemError("group", None, f"a process group of num_ranks = {problem.num_ranks} ranks, and there is none: {how}")
    group = dist.group.WORLD if group is None else group
    if dist.get_world_size(group) != problem.num_ranks:
        raise ProblemError("num_ranks", problem.num_ranks, f"the size of the process group, {dist.get_world_size(group)}")
    return group


@dataclass
class SymmetricBuffer:
    """One rank's part, and the addresses of the others.

    sym      uint8, this rank's buffer (kernels/moe/layouts/symmetric.py), zero before the first launch
    peers    int64 [num_ranks] on the device: the address of every rank's buffer as this rank sees it
    num_sms  grid of all kernels on this buffer, whose workspace counts CTAs over all launches; 0 before the first kernel
    halves   configurations of all `EpMoE` on this buffer, whose launches leave counters for the next; None before the first layer
    order    int32 [1] on the device; the torch operators declare that every call changes it (custom_op.py)
    reference  layers on it compute the reference on the CPU
    watchdog the record of a wait that exceeded its limit, in any kernel on this buffer (watchdog.py)
    """

    problem: Problem
    rank: int
    sym: torch.Tensor = field(repr=False)
    peers: torch.Tensor = field(repr=False)
    group: Any = field(default=None, repr=False)
    reference: bool = False
    num_sms: int = 0
    halves: tuple[Any, Any] | None = field(default=None, repr=False)
    pool_rows: int | None = None
    order: torch.Tensor = field(init=False, repr=False)
    watchdog: torch.Tensor = field(init=False, repr=False)
    _handle: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.order = torch.zeros(1, dtype=torch.int32, device=self.sym.device)
        self.watchdog = new_record(self.sym.device)

    @classmethod
    def allocate(
        cls,
        problem: Problem,
        arch: Arch | None = None,
        group: Any = None,
        device: torch.device | str | None = None,
        region: Region | None = None,
        pool_rows: int | None = None,
    ) -> SymmetricBuffer:
        """A zeroed buffer on the current CUDA device; all ranks of `group` call this together.

        arch    of the kernels that use the buffer; None for that of the GPU
        group   a torch.distributed process group of `problem.num_ranks` ranks, one GPU each; None for the default group, or with one rank
                for no group
        device  of a buffer without a group; the CPU without `arch` makes layers compute the reference
        region  the layout, if not that of the fused kernel and its stages
        pool_rows  of the fused kernel's configuration; None for a token pool that holds any routing

        Raises `ProblemError` without a needed process group or GPU, for a group of another size, and when ranks give different problems.
        """
        pool_rows = checked_pool_rows(pool_rows)
        if group is None and problem.num_ranks == 1:
            place = require_usable("cuda" if device is None else device)
            reference = arch is None and place.type == "cpu"
            if region is None:
                used = arch or (arch_of_recipe(problem) if reference else device_arch(place))
                region = symmetric_buffer(problem, used, pool_rows)
            sym = torch.zeros(region.size, dtype=torch.uint8, device=place)
            own = torch.tensor([sym.data_ptr()], dtype=torch.int64, device=sym.device)
            return cls(problem, 0, sym, own, reference=reference, pool_rows=pool_rows)
        group = process_group(problem, group)
        require_cuda("cuda")
        from torch.distributed import _symmetric_memory as symmetric_memory

        disable_multicast()
        given: list[Any] = [None] * problem.num_ranks
        dist.all_gather_object(given, (problem, pool_rows), group=group)
        for other, theirs in enumerate(given):
            for name, mine, their in zip(("problem", "pool_rows"), (problem, pool_rows), theirs, strict=True):
                if their != mine:
                    raise ProblemError(name, mine, f"the same on every rank; rank {other} has {their!r}")
        here = torch.device("cuda", torch.cuda.current_device())
        size = (region or symmetric_buffer(problem, arch or device_arch(here), pool_rows)).size
        sym = symmetric_memory.empty(size, dtype=torch.uint8, device=here)
        sym.zero_()
        handle = symmetric_memory.rendezvous(sym, group)
        rank, addresses = dist.get_rank(group), list(handle.buffer_ptrs)
        offset = sym.data_ptr() - addresses[rank]
        peers = torch.tensor([address + offset for address in addresses], dtype=torch.int64, device=here)
        torch.cuda.synchronize()
        dist.barrier(group)  # no rank writes into a buffer before it is zero
        return cls(problem, rank, sym, peers, group, _handle=handle, pool_rows=pool_rows)

    @property
    def num_bytes(self) -> int:
        return self.sym.numel()

    @cached_property
    def everywhere(self) -> list[torch.Tensor]:
        """The buffer of every rank, uint8, as this rank sees it."""
        if self._handle is None:
            return [self.sym]
        offset = self.sym.data_ptr() - self._handle.buffer_ptrs[self.rank]
        return [self._handle.get_buffer(rank, (self.num_bytes,), torch.uint8, offset) for rank in range(self.problem.num_ranks)]

    @contextmanager
    def binding(self, num_sms: int) -> Iterator[None]:
        """Around making kernels for this buffer: stores their grid, unless making them fails.  Raises `ProblemError` when earlier kernels
        have another grid."""
        before = self.num_sms
        if before not in (0, num_sms):
            raise ProblemError("num_sms", num_sms, f"{before}, as in every other kernel on this symmetric buffer")
        self.num_sms = num_sms
        try:
            yield
        except BaseException:
            self.num_sms = before
            raise

    def silent_ranks(self) -> list[int] | None:
        """After a wait that exceeded its limit: the ranks that do not report one (watchdog.py); None if unknown."""
        if self.group is None:
            return None
        store = dist.distributed_c10d._get_default_store()
        return silent_ranks(store, f"megamoe_dsl watchdog {self.group.group_name}", self.rank, self.problem.num_ranks)

    def who_waits(self) -> str:
        """The silent ranks, as the end of a message."""
        return name_silent(self.silent_ranks())

    def synchronize(self, owner: Any) -> None:
        """Waits for the device.  Raises `WatchdogError` when the record of `owner` says that a launch's wait exceeded its limit."""
        with naming_the_wait(owner, who=self.who_waits):
            if self.sym.is_cuda:
                torch.cuda.synchronize()

    def close(self, *, alone: bool = False) -> None:
        """Frees the buffer after all ranks have finished; all ranks call this together, or after losing ranks each `alone`."""
        if self.sym.is_cuda:
            torch.cuda.synchronize()
        if self.group is not None and not alone:
            dist.barrier(self.group)
        self._handle = None
        self.sym = self.peers = torch.empty(0, dtype=torch.uint8, device="cpu")
