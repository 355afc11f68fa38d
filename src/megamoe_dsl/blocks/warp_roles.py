"""The table of roles that a kernel is: which warps run what, with how many registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from ..device.warp import set_max_registers


@dataclass(frozen=True)
class WarpRole:
    """One row of a kernel's table.

    name       what its warps do
    warps      numbers in the CTA: one warp, a range that follows the warps of the rows above, or the CTA's last warps; None: all that the
               rows above leave
    run        called with the kernel's context and the warp's number in the CTA
    registers  of a thread after `setmaxnreg`; 0: what it begins with
    grows      whether `setmaxnreg` asks for registers, rather than gives them back
    """

    name: str
    warps: range | None
    run: Callable[[Any, Any], Any]
    registers: int = 0
    grows: bool = False

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
    """Roles whose warps have their registers together: a table within the table."""
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
