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
    warps      those of the CTA from 0 on, one, or those up to the last; None: all that earlier rows leave
    run        called with the kernel's context and the warp's number in the CTA
    registers  of a thread after `setmaxnreg`; 0: what it begins with
    grows      whether those are more than it begins with
    """

    name: str
    warps: range | None
    run: Callable[[Any, Any], Any]
    registers: int = 0
    grows: bool = False

    def has(self, warp: Any) -> Any:
        """Whether the warp is one of these."""
        assert self.warps is not None
        if len(self.warps) == 1:
            return warp == self.warps.start
        return warp >= self.warps.start if self.warps.start else warp < self.warps.stop


def warps(first: int) -> range:
    """One warp."""
    return range(first, first + 1)


@cute.jit
def run_role(role: cutlass.Constexpr[WarpRole], ctx: Any, warp: Any):
    """Gives or takes registers, and runs the role."""
    if cutlass.const_expr(role.registers > 0):
        set_max_registers(role.registers, grow=role.grows)
    role.run(ctx, warp)


@cute.jit
def run_roles(roles: cutlass.Constexpr[tuple[WarpRole, ...]], ctx: Any, warp: Any):
    """The role of a warp."""
    if cutlass.const_expr(roles[0].warps is None) or roles[0].has(warp):
        run_role(roles[0], ctx, warp)
    elif cutlass.const_expr(len(roles) > 1):
        run_roles(roles[1:], ctx, warp)
