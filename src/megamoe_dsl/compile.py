"""From a configuration to an artifact: PTX and cubin, with no GPU needed.

The configuration names the architecture; one process may compile for several.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cubin import Resources, read_resources

if TYPE_CHECKING:
    from .inspect.measures import Measure
    from .inspect.sass import Listing
    from .kernels.target import AnyConfig

KERNELS_FOLDER = Path(__file__).parent / "kernels"


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
        from .inspect.sass import disassemble

        return disassemble(self.cubin)

    @property
    def sass(self) -> str:
        """nvdisasm's output; raises as `listing`."""
        return self.listing.text

    @cached_property
    def measures(self) -> list[Measure]:
        """Instructions of every role per unit of its work (inspect/measures.py).  Needs line info; raises `InspectionError` otherwise."""
        from .inspect.measures import measure_all

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


def compile_kernel(config: AnyConfig, *, line_info: bool = False) -> Artifact:
    """Compiles the kernel of a configuration.  Takes a second or two; raises `CompileError`.

    `line_info` makes PTX and cubin name lines of the role files.  It changes no instruction, only their order in places.
    """
    # The DSL asks for an architecture when it is imported; what counts is the one given to each compilation.
    os.environ.setdefault("CUTE_DSL_ARCH", config.arch)
    import cuda.bindings.driver as driver
    import cutlass.cute as cute

    from .device.location import attribute_lines
    from .kernels.target import entry

    launch, arguments = entry(config)
    with tempfile.TemporaryDirectory() as directory:
        options = f"--gpu-arch={config.arch} --keep-ptx --keep-cubin --dump-dir={directory}"
        options += " --generate-line-info" if line_info else ""
        start = time.perf_counter()
        with attribute_lines(KERNELS_FOLDER) if line_info else nullcontext():
            compiled = cute.compile(launch, config, arguments, driver.CUstream(0), options=options)
        seconds = time.perf_counter() - start
        ptx, cubin = compiled.__ptx__, compiled.__cubin__
    if not ptx or not cubin:
        raise CompileError("the DSL kept no PTX or cubin")
    return Artifact(config, config.arch, ptx, cubin, seconds, line_info)
