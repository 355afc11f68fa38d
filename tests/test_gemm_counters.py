"""`bench/gemm.py counters` as far as it goes without a GPU: a stand-in for the profiler writes the table that it would."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gemms.counters import COUNTERS, count, counters_table, read_counters
from gemms.points import dense
from megamoe_dsl.bench.gemm.run import GemmRun
from megamoe_dsl.problem import ProblemError

OURS, THEIRS = "kernel_cutlass_gemm_kernel_0", "void sm90_fp8_gemm_1d2d_impl<...>"
LAUNCHED = ["dense 512x256x384 128x64", "dense 512x256x384 deep_gemm"]
PROFILER = """#!{python}
import subprocess, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
open(log, "w").write({table!r})
sys.exit(subprocess.run(sys.argv[sys.argv.index(log) + 1:]).returncode)
"""


def profiled(*kernels: str) -> str:
    """The profiler's table: a line of its own, names, units, then a row for each kernel."""
    names = ["ID", "Kernel Name", *COUNTERS.values()]
    rows = [[str(n), kernel, "15600", "29,071", *["50.5"] * (len(COUNTERS) - 2)] for n, kernel in enumerate(kernels)]
    return "\n".join(["==PROF== Connected", *(",".join(f'"{one}"' for one in row) for row in [names, [""] * len(names), *rows])])


def test_a_record_has_the_counters_of_its_launch_and_microseconds() -> None:
    ours, theirs = read_counters(LAUNCHED, profiled(OURS, "fill_kernel", THEIRS))
    assert (ours["name"], theirs["name"]) == tuple(LAUNCHED)
    assert ours["us"] == 15.6 and ours["cycles"] == 29071 and ours["l2_hits"] == 50.5 and set(ours) == {"name", *COUNTERS}
    assert counters_table([ours]).splitlines()[1].split()[1] == "29,071.0"


def test_a_kernel_that_the_table_lacks_is_an_error() -> None:
    with pytest.raises(ProblemError, match="launches under the profiler = 1: must be one for each of 2 kernels"):
        read_counters(LAUNCHED, profiled(OURS, "fill_kernel"))


def run_of(folder: Path) -> GemmRun:
    return GemmRun((dense(512, 256, 384),), folder, folder)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = folder / "ncu"
    profiler.write_text(PROFILER.format(python=sys.executable, table=profiled(OURS, THEIRS)))
    profiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_the_profiler_runs_the_command_and_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch)
    path, records = count(run_of(tmp_path), [sys.executable, "-c", f"print(*{LAUNCHED!r}, sep='\\n')"], 60, None)
    written = json.loads(path.read_text())["records"]
    assert path.name.startswith("gemm_counters-") and written == records and [one["name"] for one in written] == LAUNCHED


def test_a_profiler_that_is_not_there_or_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProblemError, match="profiler = 'ncu': must be Nsight Compute's command on the PATH"):
        count(run_of(tmp_path), [sys.executable, "-c", ""], 60, None)
    stand_in(tmp_path, monkeypatch)
    with pytest.raises(ProblemError, match="ended with 3: no such kernel"):
        count(run_of(tmp_path), [sys.executable, "-c", "import sys; print('no such kernel', file=sys.stderr); sys.exit(3)"], 60, None)
    assert not list(tmp_path.glob("gemm_counters-*"))
