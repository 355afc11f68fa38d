"""The shell of a CTA in every kernel: what it sets up before its roles begin (shared memory, mbarriers, and tensor maps where they are a
table in global memory), and the table of roles: which warps run what, with how many registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..device.mbarrier import fence_init, init
from ..device.sync import let_next_launch_begin, wait_for_launches_before
from ..device.tma import acquire_tensor_map, prefetch_tensor_map
from ..device.warp import elect, set_max_registers, smem_base, sync_cluster
from ..hardware.tensor_map import DESCRIPTOR_BYTES
from ..layouts.region import Region


class CtaContext:
    """Base of kernels' contexts: a configuration `config`, whose `smem` plans shared memory, and the shared address `smem` of that."""

    config: Any
    smem: Any

    def shared(self, name: str, *index: Any) -> Any:
        return self.config.smem.region.address(self.smem, name, *index)

    def barrier(self, name: str, index: Any = 0) -> Any:
        return self.shared(f"{name}_barrier", index)


@dataclass(frozen=True)
class WarpRole:
    """One row of a kernel's table."""

    name: str  # what its warps do
    # numbers in the CTA: one warp, a range that follows the warps of the rows above, or the CTA's last warps; None: all that the rows
    # above leave
    warps: range | None
    run: Callable[[Any, Any], Any]  # called with the kernel's context and the warp's number in the CTA
    registers: int = 0  # of a thread after `setmaxnreg`; 0: what it begins with
    grows: bool = False  # whether `setmaxnreg` asks for registers, rather than gives them back

    def has(self, warp: Any, above: int) -> Any:
        """Whether a warp is one of these, where the rows above have the first `above` warps of the CTA."""
        assert self.warps is not None
        if len(self.warps) == 1:
            return warp == self.warps.start
        return warp < self.warps.stop if self.warps.start == above else warp >= self.warps.start

    def covered(self, above: int) -> int:
        """Warps from 0 on that this row and the rows above have."""
        return self.warps.stop if self.warps is not None and self.warps.start == above else above


def one_warp(name: str, number: int | None, run: Callable[[Any], Any]) -> WarpRole:
    """A role of one warp, or of the only one that the rows above leave; `run` takes the kernel's context alone."""
    return WarpRole(name, None if number is None else range(number, number + 1), lambda ctx, warp: run(ctx))


def warp_group(name: str, warps: range, roles: tuple[WarpRole, ...], registers: int = 0) -> WarpRole:
    return WarpRole(name, warps, lambda ctx, warp: run_roles(roles, ctx, warp), registers)


@cute.jit
def run_role(role: cutlass.Constexpr[WarpRole], ctx: Any, warp: Any):
    """Gives or takes registers, and runs the role."""
    if cutlass.const_expr(role.registers > 0):
        set_max_registers(role.registers, grow=role.grows)
    role.run(ctx, warp)


@cute.jit
def run_roles(roles: cutlass.Constexpr[tuple[WarpRole, ...]], ctx: Any, warp: Any, above: cutlass.Constexpr[int] = 0):
    """The role of a warp: the first row of the table that has it."""
    if cutlass.const_expr(roles[0].warps is None):
        run_role(roles[0], ctx, warp)
    elif roles[0].has(warp, above):
        run_role(roles[0], ctx, warp)
    elif cutlass.const_expr(len(roles) > 1):
        run_roles(roles[1:], ctx, warp, roles[0].covered(above))


def shared_memory(plan: Region) -> Int32:
    """Shared address of so much dynamic shared memory."""
    buffer: Any = cutlass.Array(cutlass.Int8, plan.size, space=cutlass.AddressSpace.smem, alignment=plan.alignment)
    return smem_base(buffer)


@cute.jit
def init_barriers(ctx: Any):
    """All mbarriers of the SMEM plan, visible to TMA and to other CTAs of the cluster, by one elected thread."""
    if elect():
        for row in ctx.config.smem.barriers:
            for i in cutlass.range_constexpr(row.count):
                init(ctx.barrier(row.name, i), row.arrivals)
        fence_init()


@cute.jit
def acquire_maps(ctx: Any):
    """The table of tensor maps, which the configuration names.  The host has copied it to global memory, so every CTA needs a fence before
    TMA uses it (CUDA Programming Guide, "Using TMA to transfer multi-dimensional arrays")."""
    if elect():
        for i in cutlass.range_constexpr(len(ctx.config.table_maps)):
            acquire_tensor_map(ctx.args.maps + i * DESCRIPTOR_BYTES)
        for i in cutlass.range_constexpr(len(ctx.config.table_maps)):
            prefetch_tensor_map(ctx.args.maps + i * DESCRIPTOR_BYTES)


@cute.jit
def set_up_together(ctx: Any):
    """Waits for all threads of the cluster: what each has set up is visible to the others."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()
    else:
        cute.arch.sync_threads()


Step = tuple[int, Callable[[Any], Any]]
"""A warp's number, and what it does with the kernel's context."""


@cute.jit
def set_up(ctx: Any, warp: Any, steps: cutlass.Constexpr[tuple[Step, ...]]):
    """What single warps do before the roles begin, visible to all threads of the cluster."""
    for number, run in steps:
        if warp == number:
            run(ctx)
    set_up_together(ctx)


@cute.jit
def end_together(ctx: Any):
    """Waits for the cluster: no CTA leaves while another may still reach its SMEM."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()


def begin() -> None:
    """All that comes before needs nothing of the launches before this one, nor may what the next launch does before its own."""
    let_next_launch_begin()
    wait_for_launches_before()


def begin_after_others() -> None:
    """The same, for a launch whose next one may read, before it waits, what launches before this one wrote: they have ended by then.  The
    next launch begins when every CTA of this one has let it, and each does so when its wait is over."""
    wait_for_launches_before()
    let_next_launch_begin()
