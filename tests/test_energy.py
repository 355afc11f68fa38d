"""The benchmark of time and energy (bench/energy.py): what it prints of a record, and what it refuses, without the DSL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from energy import line_of
from megamoe_dsl.bench.timing import Times
from sweep import sample

SCRIPT = Path(__file__).parents[1] / "bench" / "energy.py"


def record(joules: dict[str, Any] | None) -> dict[str, Any]:
    times = {"median": 200.0, "low": 190.0, "high": 210.0}
    return {"name": "flash", "point": {"ranks": 2}, "graph_us": {"ours": times, "baseline": {**times, "median": 400.0}}, "joules": joules}


def test_a_line_has_joules_and_watts_of_one_rank() -> None:
    line = line_of(record({name: {"median": median} for name, median in (("ours", 0.28), ("baseline", 0.48))}))
    assert line == "flash: ours 200.0 us, 0.140 J, 700 W; baseline 400.0 us, 0.240 J, 600 W"


def test_linears_alone_follow_in_the_line() -> None:
    alone = {"graph_us": {"ours": {"median": 100.0}}, "joules": {"ours": {"median": 0.14}}}
    line = line_of({**record(None), "linears": {"moe_fc1": alone, "moe_fc2": {**alone, "joules": None}}})
    assert line == "flash: ours 200.0 us; baseline 400.0 us; moe_fc1 100.0 us, 0.070 J, 700 W; moe_fc2 100.0 us"


def test_a_gpu_that_does_not_say_and_a_failure_are_lines_too() -> None:
    assert line_of(record(None)) == "flash: ours 200.0 us; baseline 400.0 us"


def test_spread_is_that_of_the_turns() -> None:
    found = Times.of([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)


@sample("options1-nowhere")
@pytest.mark.parametrize(("options", "message"), [(["--tokens", "0"], "tokens"), (["--baseline", "nowhere"], "nowhere")])
def test_bad_options_end_before_anything_runs(options: list[str], message: str) -> None:
    absent = "cutlass", "typer", "rich", "hypothesis"
    hidden = f"import runpy, sys\nfor name in {absent!r}:\n    sys.modules[name] = None\n"
    code = f"{hidden}sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
    code += f"sys.argv = ['energy.py', *{options!r}]\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1]
