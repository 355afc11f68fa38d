"""What a script of the repository says to `--help`."""

from __future__ import annotations

import runpy
import sys
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from unittest.mock import patch


@cache
def help_of(script: Path, *words: str) -> str:
    """`python SCRIPT WORDS --help`, in this process, which has imported already what scripts import."""
    said = StringIO()
    with (
        patch.object(sys, "argv", [str(script), *words, "--help"]),
        patch.object(sys, "path", [str(script.parent), *sys.path]),
        redirect_stdout(said),
    ):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            assert not end.code, f"{script}: exit code {end.code}"
    return said.getvalue()
