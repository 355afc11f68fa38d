"""The programs of README run: that of a GPU with CPU tensors, that of the simulator as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 100 and len(PROGRAMS) == 2


def test_the_program_for_a_gpu_runs() -> None:
    names: dict[str, Any] = {}
    exec(PROGRAMS[0].replace('"cuda"', '"cpu"'), names)
    y = names["y"]
    assert y.shape == (10, 512) and y.dtype == torch.bfloat16 and y.isfinite().all() and y.any(dim=1).all()


@pytest.mark.sweep
def test_the_program_for_the_simulator_runs() -> None:
    names: dict[str, Any] = {}
    exec(PROGRAMS[1], names)
    assert names["report"].instructions > 10_000 and names["y"][0].shape == (9, 256)
