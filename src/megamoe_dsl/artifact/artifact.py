"""A compiled kernel: PTX and cubin, and what can be read from them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..arch import Arch
from ..kernels.kernel import Kernel
from ..kernels.registry import kernel_of
from ..sass.listing import Listing, disassemble
from ..sass.measurer import Measure
from ..sass.overtaken_loads import OvertakenLoad, overtaken_loads, unconverged_loads
from .cubin import Resources, read_code, read_resources


class CompileError(RuntimeError):
    """The kernel does not compile."""


@dataclass(frozen=True)
class Artifact:
    """The compiled kernel of a configuration.

    seconds    from Python source to cubin
    line_info  PTX and cubin name Python lines
    """

    config: Any
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    seconds: float
    line_info: bool = False

    @property
    def arch(self) -> Arch:
        return self.config.arch

    @property
    def kernel(self) -> Kernel:
        return kernel_of(self.config)

    @cached_property
    def entry(self) -> str:
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
        return disassemble(self.cubin)

    @property
    def sass(self) -> str:
        """nvdisasm's output; raises as `listing`."""
        return self.listing.text

    @cached_property
    def overtaken_loads(self) -> list[OvertakenLoad]:
        """Loads from shared memory that what gives their bytes away does not wait for (sass/overtaken_loads.py); raises as `listing`."""
        return overtaken_loads(self.listing, read_code(self.cubin, self.entry))

    @property
    def unconverged_loads(self) -> list[OvertakenLoad]:
        """Loads in loops of MMAs that lanes may issue after another lane's arrival (sass/overtaken_loads.py); raises as `listing`."""
        return unconverged_loads(self.listing)

    @cached_property
    def measures(self) -> list[Measure]:
        """Instructions of every role per unit of its work (sass/measurer.py); none for a kernel that declares no roles.  Needs line info;
        raises `InspectionError` otherwise."""
        return self.kernel.measures(self.config, self.listing)

    def histogram(self, role: str) -> dict[str, dict[str, float]]:
        """Unit of work to instructions of each kind, for a role as `measures` names it.  Raises as `measures`, and KeyError."""
        found = {one.unit: one.kinds for one in self.measures if one.role == role}
        if not found:
            raise KeyError(f"role {role!r}: must be one of {', '.join(dict.fromkeys(one.role for one in self.measures))}")
        return found

    @property
    def dynamic_smem(self) -> int:
        """Bytes of dynamic shared memory of a launch; 0 for kernels without a plan."""
        return self.kernel.dynamic_smem(self.config)
