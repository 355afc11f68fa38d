"""From a configuration to an artifact: PTX and cubin, with no GPU needed.

The configuration names the architecture; one process may compile for several.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import KernelConfig
from .config_sm90 import Sm90Config
from .cubin import Resources, read_code, read_resources
from .problem import Problem, ProblemError

if TYPE_CHECKING:
    from .inspect.measures import Measure
    from .inspect.overtaken_loads import OvertakenLoad
    from .inspect.sass import Listing
    from .kernels.target import AnyConfig

KERNELS_FOLDER = Path(__file__).parent / "kernels"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in the DSL's diagnostics


class CompileError(RuntimeError):
    """The kernel does not compile."""


@contextmanager
def naming_the_compiler() -> Iterator[None]:
    """Turns an error that the DSL reports into `CompileError`: its own words, without colours; the DSL's error is the cause."""
    from cutlass.base_dsl.common import DSLBaseError

    try:
        yield
    except DSLBaseError as error:
        raise CompileError(f"the DSL: {COLOURS.sub('', str(error))}") from error


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
    def overtaken_loads(self) -> list[OvertakenLoad]:
        """Loads from shared memory that what gives their bytes away does not wait for (inspect/overtaken_loads.py); raises as `listing`."""
        from .inspect.overtaken_loads import overtaken_loads

        return overtaken_loads(self.listing, read_code(self.cubin, self.entry))

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
        with naming_the_compiler(), attribute_lines(KERNELS_FOLDER) if line_info else nullcontext():
            compiled = cute.compile(launch, config, arguments, driver.CUstream(0), options=options)
        seconds = time.perf_counter() - start
        ptx, cubin = compiled.__ptx__, compiled.__cubin__
    if not ptx or not cubin:
        raise CompileError("the DSL kept no PTX or cubin")
    return Artifact(config, config.arch, ptx, cubin, seconds, line_info)


def compile(problem: Problem, arch: str = "sm_100a", *, num_tokens: int | None = None, **overrides: Any) -> Artifact:
    """The kernel for a problem, with line info, so that `.histogram(role)` and `.measures` answer.

    arch        "sm_100a" (problem.dtypes fp8xfp4) or "sm_90a" (fp8xfp8)
    num_tokens  tokens on every rank that the configuration is chosen for; by default the capacity, max_tokens_per_rank
    overrides   fields of the configuration (`KernelConfig`, `Sm90Config`)

    Raises `ProblemError` for an unknown arch or another arch's dtypes, `ConfigError` and `CompileError`.
    """
    kinds: dict[str, tuple[type[Any], str]] = {"sm_100a": (KernelConfig, "fp8xfp4"), "sm_90a": (Sm90Config, "fp8xfp8")}
    if arch not in kinds:
        raise ProblemError("arch", arch, "one of " + ", ".join(kinds))
    kind, dtypes = kinds[arch]
    if problem.dtypes != dtypes:
        raise ProblemError("dtypes", problem.dtypes, f"{dtypes} for {arch}")
    config = kind.choose(problem, problem.max_tokens_per_rank if num_tokens is None else num_tokens, **overrides)
    return compile_kernel(config, line_info=True)
