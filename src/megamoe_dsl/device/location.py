"""Which Python line an operation is attributed to in line info."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cutlass._mlir.ir as mlir
from cutlass._mlir_helpers.op import loc_transform

ir: Any = mlir  # built at import, unknown to type checkers


@contextmanager
def attribute_lines(folder: Path) -> Iterator[None]:
    """Operations traced inside are attributed to the innermost Python frame whose file lies in `folder`, where there is one.

    Left alone, the DSL names the innermost frame of all: for most operations a line of a helper, the same in every role.
    """
    prefix = f"{folder}/"

    def transform(location: Any) -> Any:
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(prefix):
                return ir.Location.file(frame.f_code.co_filename, frame.f_lineno, 0)
            frame = frame.f_back  # type: ignore[assignment]
        return location

    with loc_transform(transform):
        yield
