"""Registers that each group of warps touches, against what `setmaxnreg` leaves it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ..sass.flow import Flow
from ..sass.listing import Listing
from ..sass.measurer import InspectionError


@dataclass(frozen=True)
class RegisterUse:
    """`budget` of the group after setmaxnreg, `used` (highest register index + 1), instructions that load from and store to the stack."""

    group: str
    budget: int
    used: int
    stack_loads: int
    stack_stores: int

    @property
    def fits(self) -> bool:
        """Whether the group keeps to its budget and off the stack."""
        return self.used <= self.budget and not self.stack_loads and not self.stack_stores


def register_use(budgets: Mapping[str, int], listing: Listing) -> list[RegisterUse]:
    """Of each group of warps with a budget: what can run after its USETMAXREG, slow paths and the common tear-down included.

    Raises `InspectionError` when one is missing.

    Groups of one budget cannot be told apart and show the worst of both.  Call instructions are left out: nvdisasm lets them read every
    register, and what they call is a trap.
    """
    flow = Flow(listing)
    at: defaultdict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(listing.instructions):
        if one.operation == "USETMAXREG":
            at[int(one.operands.rsplit("0x", 1)[1], 16)].append(i)
    found = []
    for group, budget in budgets.items():
        if budget not in at:
            raise InspectionError(f"no USETMAXREG of {budget} registers for {group}; there are {sorted(at)}")
        code = [listing.instructions[i] for i in frozenset().union(*(flow.reachable(start) for start in at[budget]))]
        used = 1 + max(one.highest for one in code if one.operation != "CALL")
        loads, stores = (sum(one.operation == operation for one in code) for operation in ("LDL", "STL"))
        found.append(RegisterUse(group, budget, used, loads, stores))
    return found
