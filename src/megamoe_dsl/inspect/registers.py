"""Registers that each group of warps touches, against what `setmaxnreg` leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import KernelConfig
from .flow import Flow
from .measures import InspectionError
from .sass import Instruction, Listing


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
        return self.used <= self.budget and not self.stack_loads and not self.stack_stores


def register_use(config: KernelConfig, listing: Listing) -> list[RegisterUse]:
    """What can run after each USETMAXREG, slow paths and the common tear-down included.  Raises `InspectionError` when one is missing.

    Call instructions are left out: nvdisasm lets them read every register, and what they call is a trap.
    """
    flow = Flow(listing)
    at = {int(one.operands.rsplit("0x", 1)[1], 16): i for i, one in enumerate(listing.instructions) if one.operation == "USETMAXREG"}
    found = []
    for group in ("dispatch", "loader", "epilogue"):
        budget = getattr(config.registers, group)
        if budget not in at:
            raise InspectionError(f"no USETMAXREG of {budget} registers for {group}; there are {sorted(at)}")
        code: list[Instruction] = [listing.instructions[i] for i in flow.reachable(at[budget])]
        used = 1 + max(one.highest for one in code if one.operation != "CALL")
        loads, stores = (sum(one.operation == operation for one in code) for operation in ("LDL", "STL"))
        found.append(RegisterUse(group, budget, used, loads, stores))
    return found
