"""What `make quick` runs: tests that touch no compiler.  compiling.txt lists the files and folders of those that may, or start Python."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
COMPILING = frozenset(FOLDER / line for line in (FOLDER / "compiling.txt").read_text().split())


def is_quick(path: Path) -> bool:
    """Whether neither the file nor a folder of it is in the list."""
    return not COMPILING & {path, *path.parents}


def forbid_the_compiler() -> None:
    """From here on `import cutlass` fails, so that a module that compiles cannot stay out of the list."""
    sys.modules["cutlass"] = None
