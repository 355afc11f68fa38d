"""PTX for the simulator, of a small kernel of a test's own or of any other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cuda.bindings.driver import CUstream

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.kernels.registry import entry


def ptx_of(launch: Callable[..., Any], *arguments: Any, arch: str = "sm_100a") -> str:
    """What a launching function compiles to with these placeholders; nothing is left on disk.

    An unknown option stops the assembler, which takes a fifth of a compilation; tests of `compile_kernel`, as in tests/golden, run it.
    """
    import cutlass.cute as cute
    from cutlass.base_dsl.common import DSLBaseError

    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch={arch} --keep-ptx --ptxas-options=--no-cubin --dump-dir={folder}"
        try:
            cute.compile(launch, *arguments, options=options, no_jit_engine=True)
        except DSLBaseError as error:
            if "Unknown option '-no-cubin'" not in str(error):
                raise
        [file] = Path(folder).glob("*.ptx")
        return file.read_text()


@cache
def artifact(config: KernelConfig) -> Artifact:
    """A kernel for the simulator: it has no cubin."""
    launch, arguments = entry(config)
    return Artifact(config, ptx_of(launch, config, arguments, CUstream(0), arch=config.arch.compiled_for), b"", 0.0)
