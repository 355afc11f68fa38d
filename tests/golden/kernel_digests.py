"""Digests of a kernel: of its PTX, and of what the DSL traces.  Equal operations become equal instructions, and tracing takes a third of
the time."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from unittest.mock import patch

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.store import dsl_version
from megamoe_dsl.kernels.kernel import KernelConfig

DEBUG_LINE = re.compile(r"\s*(//|\.file|\.loc)")
COMMENT = re.compile(r"\s*//.*$")
NAME = re.compile(r"\b(kernel_)?cutlass_\w+")  # of a function: it has its configuration's fields
PATH = re.compile(r"='/[^']*'")


def digest(artifact: Artifact) -> str:
    """Sixteen hexadecimal digits of a kernel's instructions, declarations and parameters."""
    text = artifact.ptx.replace(artifact.entry, "kernel").replace(f".target {artifact.arch.compiled_for}", f".target {artifact.arch}")
    lines = (COMMENT.sub("", line).strip() for line in text.splitlines() if not DEBUG_LINE.match(line))
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()[:16]


class _Traced(Exception):
    """Leaves the DSL where it would compile a module."""


def traced_digest(config: KernelConfig) -> str:
    """Sixteen hexadecimal digits of a kernel's operations without names and lines, of the passes that compile it, and of the DSL."""
    found: list[str] = []

    def stop(self: Any, module: Any, pipeline: str, **options: Any) -> None:
        found.extend([NAME.sub("name", module.operation.get_asm(enable_debug_info=False)), PATH.sub("", pipeline), dsl_version()])
        raise _Traced

    from cutlass.base_dsl.compiler import Compiler

    try:
        with patch.object(Compiler, "compile", stop):
            compile_kernel(config)
    except _Traced:
        return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
    raise AssertionError("the DSL compiled without its compiler")
