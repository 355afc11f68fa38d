"""Hardware counters of GEMMs, ours beside DeepGEMM's, one warm launch of each under Nsight Compute."""

from __future__ import annotations

import csv
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megamoe_dsl.bench.gemm.run import GemmRun, configs_of
from megamoe_dsl.bench.host import Host
from megamoe_dsl.problem import ProblemError
from records import save

PROFILER = "ncu"
TIME, CYCLES = "gpu__time_duration.sum", "gpc__cycles_elapsed.max"
PEAK = ".avg.pct_of_peak_sustained_elapsed"
COUNTERS = {
    "us": TIME,
    "cycles": CYCLES,
    "tensor_core": f"sm__pipe_tensor_cycles_active{PEAK}",
    "smem_wavefronts": f"l1tex__data_pipe_lsu_wavefronts{PEAK}",
    "sm_reads_of_l2": f"l1tex__m_xbar2l1tex_read_sectors{PEAK}",
    "l2_sectors": f"lts__t_sectors{PEAK}",
    "l2_out": f"lts__lts2xbar_cycles_active{PEAK}",
    "l2_hits": "lts__t_sector_hit_rate.pct",
}
"""Nsight Compute's names; all but the first two are percent of the peak, or of the accesses."""

NAME = "Kernel Name"
GEMMS = "gemm"
"""A part of the name of every kernel that counts; what else a library launches beside its GEMM does not."""

WARM = 3


def launch_once(run: GemmRun, host: Host, site: Path | None) -> None:
    """What the profiler sees: of every point each kernel in a range of its own, warm; prints their names in that order.

    Raises `HostError` for GPUs whose GEMMs are not timed."""
    run.check(host)
    import torch

    from gemms.baselines import deep_gemm
    from megamoe_dsl.artifact.store import ArtifactStore
    from megamoe_dsl.bench.gemm.session import PointInputs, loaded

    store, target = ArtifactStore(run.artifacts), host.target
    for point in run.points:
        inputs = PointInputs.draw(point)
        launches = loaded(configs_of(store, point, target, run.variants), store, inputs.tensors)
        theirs = deep_gemm(point, inputs, torch.empty_like(inputs.tensors.d), site)
        launches |= {name: launch for name, launch in theirs.items() if not name.endswith("pdl")}
        for name, launch in launches.items():
            for _ in range(WARM):
                launch()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            launch()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()
            print(f"{point.name} {name}", flush=True)


def read_counters(names: Sequence[str], table: str) -> list[dict[str, Any]]:
    """Records from the names of launches and the profiler's table (`--csv --page raw --print-units base`), times in microseconds.

    Raises `ProblemError` where the table has not one GEMM for each name."""
    lines = [line for line in table.splitlines() if line.startswith('"')]
    rows = [row for row in csv.DictReader(lines) if GEMMS in row[NAME]]
    if len(rows) != len(names):
        raise ProblemError("launches under the profiler", len(rows), f"one for each of {len(names)} kernels")
    records = []
    for name, row in zip(names, rows, strict=True):
        figures = {key: float(row[counter].replace(",", "")) for key, counter in COUNTERS.items()}
        records.append({"name": name, **figures, "us": figures["us"] / 1e3})
    return records


def count(run: GemmRun, command: Sequence[str], limit_s: float, site: Path | None) -> tuple[Path, list[dict[str, Any]]]:
    """Runs `command`, which calls `launch_once`, under the profiler; the results file and its records.

    Raises `ProblemError` where there is no profiler, or it does not end well."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        options = ["--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none"]
        output = ["--metrics", ",".join(COUNTERS.values()), "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
        try:
            done = subprocess.run([PROFILER, *options, *output, *command], capture_output=True, text=True, timeout=limit_s)
        except FileNotFoundError:
            raise ProblemError("profiler", PROFILER, "Nsight Compute's command on the PATH") from None
        if done.returncode:
            raise ProblemError("profiler", f"{PROFILER} ended with {done.returncode}: {done.stderr[-800:]}", "a run that ends well")
        records = read_counters(done.stdout.splitlines(), log.read_text())
    return save(run.out, "gemm_counters", records, site), records


def counters_table(records: Sequence[dict[str, Any]]) -> str:
    """Records as text."""
    head = " ".join(f"{key:>15}" for key in COUNTERS)
    return "\n".join([head, *(" ".join(f"{one[key]:15,.1f}" for key in COUNTERS) + f"  {one['name']}" for one in records)])
