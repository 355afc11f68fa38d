"""Every example runs as a user would run it, in a process of its own."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

from forked import forked_process

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
LIMIT_S = 300


def run(example: Path, output: Path) -> None:
    """`python EXAMPLE` in the output's folder, what it says in this file."""
    os.chdir(output.parent)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    process = forked_process(run, (path, output))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0, output.read_text()
    assert output.read_text().strip()
