"""Whether C files can be compiled here."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest


def require_compiler() -> None:
    """Skips a test where there is no C compiler, or no header of Python's."""
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("no C compiler, or no Python.h")
