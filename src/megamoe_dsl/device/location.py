"""Which Python line the line info of a compiled kernel names for an operation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import cutlass._mlir.ir as mlir
from cutlass._mlir_helpers.op import loc_transform

ir: Any = mlir  # built at import, unknown to type checkers
DEVICE_CODE = ("cutlass", __name__.rpartition(".")[0])
"""A file that imports from these is device code.  Plans and layouts do not: they are arithmetic, and their operations belong to the role
that calls them."""


def _traces(frame: FrameType, known: dict[str, bool]) -> bool:
    name = frame.f_code.co_filename
    if name not in known:
        values = [getattr(one, "func", one) for one in frame.f_globals.values()]  # of partials, too
        origins = [getattr(one, "__module__", None) or getattr(one, "__name__", "") for one in values]
        known[name] = any(isinstance(origin, str) and origin.startswith(DEVICE_CODE) for origin in origins)
    return known[name]


@contextmanager
def attribute_lines(*folders: Path) -> Iterator[None]:
    """Operations traced inside are attributed to the innermost Python frame of device code whose file lies in one of `folders`, if any.
    Left alone, the DSL names the innermost frame of all: for most operations a line of a helper, the same in every role."""
    prefixes = tuple(f"{folder}/" for folder in folders)
    known: dict[str, bool] = {}

    def transform(location: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(prefixes) and _traces(frame, known):
                return ir.Location.file(frame.f_code.co_filename, frame.f_lineno, 0)
            frame = frame.f_back
        return location

    with loc_transform(transform):
        yield
