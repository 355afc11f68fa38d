"""Packages of others from a folder: nothing of theirs is installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def import_from(name: str, *folders: Path) -> Any:
    """A module, looked for in these folders before all others.  Raises ImportError where it, or what it imports, is missing."""
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return importlib.import_module(name)
