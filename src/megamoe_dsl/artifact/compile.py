"""From a configuration to an artifact: PTX and cubin, with no GPU needed.

The configuration names the architecture; one process may compile for several.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ..interrupts import held_interrupts
from ..kernels.kernel import KernelConfig
from ..kernels.registry import entry, kernel_of
from .artifact import Artifact, CompileError

ROLE_FOLDERS = tuple(Path(__file__).parents[1] / name for name in ("kernels", "blocks"))
TEMPORARY_BYTES = 16 << 20
"""Most bytes of files of one compilation."""
COLORS = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in the DSL's diagnostics


@contextmanager
def calling_the_dsl() -> Iterator[None]:
    """Around every compilation: turns the DSL's error into `CompileError`, with its message without colors.  An OSError behind it, such as
    a full disk, stays an OSError.  Interrupts wait, because the DSL aborts on one."""
    from cutlass.base_dsl.common import DSLBaseError

    try:
        with held_interrupts():
            yield
    except DSLBaseError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise CompileError(f"the DSL: {COLORS.sub('', str(error))}") from error


def require_whole(directory: str, *parts: str | bytes | None) -> None:
    """Raises `CompileError` if a part is empty or the disk is full: the DSL could not write its files."""
    free = shutil.disk_usage(directory).free
    if not free or not all(parts):
        full = f": the disk is full, TMPDIR must have {TEMPORARY_BYTES >> 20} MiB" if free < TEMPORARY_BYTES else ""
        raise CompileError(f"the DSL could not write PTX and cubin into {directory}{full}")


def compile_kernel(config: KernelConfig, *, line_info: bool = False) -> Artifact:
    """Compiles the kernel of a configuration, in a second or two.  Raises `CompileError`, and `ConfigError` for another object.
    `line_info` makes PTX and cubin name lines of the role files; it changes no instruction, only their order in places."""
    # The DSL reads an architecture at import; each compilation is given its own.
    kernel_of(config)
    os.environ.setdefault("CUTE_DSL_ARCH", config.arch.compiled_for)
    import cuda.bindings.driver as driver
    import cutlass.cute as cute

    from ..device.location import attribute_lines

    launch, arguments = entry(config)
    with tempfile.TemporaryDirectory() as directory:
        options = f"--gpu-arch={config.arch.compiled_for} --keep-ptx --keep-cubin --dump-dir={directory}"
        options += " --generate-line-info" if line_info else ""
        start = time.perf_counter()
        with calling_the_dsl(), attribute_lines(*ROLE_FOLDERS) if line_info else nullcontext():
            compiled = cute.compile(launch, config, arguments, driver.CUstream(0), options=options, no_jit_engine=True)
        seconds = time.perf_counter() - start
        ptx, cubin = compiled.__ptx__, compiled.__cubin__
        require_whole(directory, ptx, cubin)
    return Artifact(config, ptx, cubin, seconds, line_info)
