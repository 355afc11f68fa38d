"""PTX of a small kernel of a test's own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any


def ptx_of(launch: Callable[..., Any], *arguments: Any, arch: str = "sm_100a") -> str:
    """What a launching function compiles to with these placeholders; nothing is left on disk."""
    import cutlass.cute as cute

    with tempfile.TemporaryDirectory() as folder:
        compiled = cute.compile(launch, *arguments, options=f"--gpu-arch={arch} --keep-ptx --dump-dir={folder}")
        ptx: str = compiled.__ptx__
    return ptx
