"""A compiled kernel: PTX and cubin, and what can be read from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .cubin import Resources, read_code, read_resources

if TYPE_CHECKING:
    from ..inspect.measures import Measure
    from ..sass.listing import Listing
    from ..sass.overtaken_loads import OvertakenLoad


class CompileError(RuntimeError):
    """The kernel does not compile."""


@dataclass(frozen=True)
class Artifact:
    """The compiled kernel of a configuration.

    seconds    from Python source to cubin
    line_info  PTX and cubin name Python lines
    """

    config: Any
    arch: str
    ptx: str
    cubin: bytes
    seconds: float
    line_info: bool = False

    @cached_property
    def entry(self) -> str:
        """Name of the kernel's entry point."""
        match = re.search(r"\.entry\s+([\w$]+)", self.ptx)
        if match is None:
            raise CompileError("the PTX has no .entry")
        return match.group(1)

    @cached_property
    def resources(self) -> Resources:
        """Registers, stack and spills that ptxas reports in the cubin."""
        return read_resources(self.cubin)[self.entry]

    @cached_property
    def listing(self) -> Listing:
        """Disassembled instructions.  Takes a second or two; raises `DisassemblyError` when nvdisasm is missing."""
        from ..sass.listing import disassemble

        return disassemble(self.cubin)

    @property
    def sass(self) -> str:
        """nvdisasm's output; raises as `listing`."""
        return self.listing.text

    @cached_property
    def overtaken_loads(self) -> list[OvertakenLoad]:
        """Loads from shared memory that what gives their bytes away does not wait for (sass/overtaken_loads.py); raises as `listing`."""
        from ..sass.overtaken_loads import overtaken_loads

        return overtaken_loads(self.listing, read_code(self.cubin, self.entry))

    @cached_property
    def measures(self) -> list[Measure]:
        """Instructions of every role per unit of its work (inspect/measures.py).  Needs line info; raises `InspectionError` otherwise."""
        from ..inspect.measures import measure_all

        return measure_all(self.config, self.listing)

    def histogram(self, role: str) -> dict[str, dict[str, float]]:
        """Unit of work to instructions of each kind, for a role as `measures` names it.  Raises as `measures`, and KeyError."""
        found = {one.unit: one.kinds for one in self.measures if one.role == role}
        if not found:
            raise KeyError(f"role {role!r}: must be one of {', '.join(dict.fromkeys(one.role for one in self.measures))}")
        return found

    @property
    def dynamic_smem(self) -> int:
        """Bytes of dynamic shared memory of a launch; 0 for kernels without a plan."""
        plan = getattr(self.config, "smem", None)
        return plan.num_bytes if plan else 0
