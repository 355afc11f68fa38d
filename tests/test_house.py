"""The measures of `house.py` stay within their bounds, and its command prints them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from house import BOUNDS, measures


@pytest.mark.parametrize("name", BOUNDS)
def test_a_measure_is_within_its_bound(name: str) -> None:
    assert measures()[name] <= BOUNDS[name][0]


def test_the_command_prints_every_measure() -> None:
    command = [sys.executable, str(Path(__file__).with_name("house.py"))]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [f"| {name}" for name in BOUNDS]
