"""The benchmark of what Python takes of a call (bench/python_time.py): what it calls and records.  No time is held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "python_time.py"
NAMES = {"moe", "moe, BF16, each time other tokens", "gemm", "grouped_gemm", "forward, FP8", "a launch by cuda-bindings", "torch add_"}


@pytest.mark.sweep
def test_every_call_works_without_a_gpu(tmp_path: Path) -> None:
    options = ["--rounds", "1", "--calls", "1", "--repeats", "1", "--out", str(tmp_path)]
    subprocess.run([sys.executable, str(SCRIPT), *options], check=True, timeout=120)
    (file,) = tmp_path.glob("python_time-*.json")
    (record,) = json.loads(file.read_text())["records"]
    assert record["us"].keys() >= NAMES and all(one["median"] > 0 for one in record["us"].values())
