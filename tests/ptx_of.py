"""PTX for the simulator, of a small kernel of a test's own or of any other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

from cuda.bindings.driver import CUstream

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.kernels.registry import entry


def ptx_of(launch: Callable[..., Any], *arguments: Any, arch: str = "sm_100a") -> str:
    """What a launching function compiles to with these placeholders; nothing is left on disk."""
    import cutlass.cute as cute

    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch={arch} --keep-ptx --opt-level 0 --dump-dir={folder}"  # of the assembler, whose cubin nobody sees
        compiled = cute.compile(launch, *arguments, options=options, no_jit_engine=True)
        ptx: str = compiled.__ptx__
    return ptx


@cache
def artifact(config: KernelConfig) -> Artifact:
    """A kernel for the simulator: it has no cubin."""
    launch, arguments = entry(config)
    return Artifact(config, ptx_of(launch, config, arguments, CUstream(0), arch=config.arch.compiled_for), b"", 0.0)
