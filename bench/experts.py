"""Times a MoE layer on one GPU, all of whose experts are there, beside torch and other projects' layers: from chosen experts, from tokens
with the router before, and in FP8 by the fused kernel on one rank, beside the unfused pipeline (tokens copied to experts' rows, DeepGEMM's
grouped GEMMs around an activation, rows summed).

    python bench/experts.py prepare FOLDER [--points deepseek-v3:64 ...]      where the DSL is: compiles the kernels of the points
    python bench/experts.py run FOLDER [--points ...] [--baseline SITE] [--sglang SITE] [--quack SITE] [--sonic SITE] [--out FOLDER]   a GPU
    python bench/experts.py try FOLDER ...      as `run` without times: what runs, what is refused; compiles what compiles when first called
    python bench/experts.py trace FOLDER [--points ...] [--out FOLDER]      where a GPU is: stamps of Linear1, and files for Perfetto
    python bench/experts.py prepare-tiles FOLDER [--points ...]      where the DSL is: compiles the linears with several tiles
    python bench/experts.py tiles FOLDER [--points ...] [--out FOLDER]      where a GPU is: Linear2 by tiles, both linears without bursts
    python bench/experts.py prepare-early FOLDER [--points ...]      where the DSL is: compiles the layer with launches early and late
    python bench/experts.py early FOLDER [--points ...] [--out FOLDER]      where a GPU is: the layer by which launches begin early
    python bench/experts.py prepare-few FOLDER --points qwen3-next:1 ...      where the DSL is: compiles kernels of a few tokens
    python bench/experts.py few FOLDER --points ... [--sglang SITE] [--flashinfer SITE] [--out FOLDER]      a GPU: a few tokens
    python bench/experts.py launches FOLDER [--points ...] [--out FOLDER]      where a GPU is: the four launches made in other ways
    python bench/experts.py table FILE      anywhere: tables of docs/lab/one_gpu.md; `few-table`, `memory`: others there
    python bench/experts.py launch-table FILE      anywhere: its times into the tuned table by which `MoE` chooses launches

SITE has unpacked wheels: deep_gemm, sglang and flashinfer as bench/sites.py makes it, einops and CuTe DSL beside quack's sources, or CuTe
DSL 4.2.1 beside the sources of sonic-moe and of the quack that it asks for.  What does not run is left out, and named in the record's
`refused`.  `run` takes seven turns, or --turns N.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.timing import REPEATS
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.target import Target, local_target
from megamoe_dsl.tuned.table import FOLDER
from moe_layers.early import compile_early, run_early
from moe_layers.few_tokens import compile_few, few_table, run_few
from moe_layers.launch_table import write_launch_table
from moe_layers.launches import run_launches
from moe_layers.memory import memory_table
from moe_layers.point import find_points
from moe_layers.report import markdown
from moe_layers.run import Sites, Tried, compile_points, run_points
from moe_layers.tiles import compile_tiles, run_tiles
from moe_layers.trace import trace_experts
from records import save, save_each
from script_options import at_least

TARGET = local_target() or Target.typical("sm_90a")
LINEARS = ("prepare-tiles", "tiles", "prepare-early", "early", "prepare-few", "few", "launches")
TABLES: dict[str, Callable[..., str]] = {"table": markdown, "memory": memory_table, "few-table": few_table}
WHATS = ("prepare", "try", "run", "trace", *LINEARS, *TABLES, "launch-table")


def medians(record: dict[str, Any]) -> str:
    """Of all that a record's point has timed."""
    return f"{record['point']}: " + "  ".join(f"{name} {one['median']:.1f}" for name, one in record["us"].items())


def with_host(record: dict[str, Any]) -> str:
    """The same, what is refused, and the host's times."""
    host = "  ".join(f"{name} {one['median']:.1f}" for name, one in record["host_us"].items())
    return f"{medians(record)}  {record['refused'] or ''}\n  host: {host}"


def summary(record: dict[str, Any]) -> str:
    """The same and errors."""
    return f"{with_host(record)}\n  errors " + ", ".join(f"{one:.3g}" for one in record["errors"].values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHATS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--points", nargs="*", default=[])
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--sglang", type=Path)
    parser.add_argument("--quack", type=Path)
    parser.add_argument("--sonic", type=Path)
    parser.add_argument("--flashinfer", type=Path)
    parser.add_argument("--turns", type=at_least(1), default=REPEATS, help="of `run`; their number also decides the order")
    parser.add_argument("--joules", type=at_least(0), default=0, metavar="TURNS", help="of `run`, a second of calls each")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    if given.what in TABLES:
        print(TABLES[given.what](json.loads(given.folder.read_text())["records"]))
        return
    if given.what == "launch-table":
        print(write_launch_table(given.folder, FOLDER))
        return
    try:
        points = find_points(given.points)
    except ProblemError as error:
        parser.error(str(error))
    if given.what == "prepare":
        print(f"{compile_points(points, TARGET, given.folder)} kernels into {given.folder}")
        return
    if given.what == "prepare-tiles":
        print(f"{compile_tiles(points, TARGET, given.folder)} kernels into {given.folder}")
        return
    if given.what == "prepare-early":
        print(f"{compile_early(points, TARGET, given.folder)} kernels into {given.folder}")
        return
    if given.what == "prepare-few":
        print(f"{compile_few(points, TARGET, given.folder)} kernels into {given.folder}")
        return
    if given.what == "early":
        early = save_each(given.out, "experts-early", run_early(points, TARGET, given.folder), medians)
        sys.exit(not all(record["passed"] for record in early))
    if given.what == "tiles":
        tiles = save_each(given.out, "experts-tiles", run_tiles(points, TARGET, given.folder), medians)
        sys.exit(not all(record["passed"] for record in tiles))
    sites = Sites(given.baseline, given.sglang, given.quack, given.sonic, given.flashinfer)
    os.environ[FOLDER_VARIABLE] = str(given.folder)  # where `moe` finds its kernels
    if given.what == "few":
        few = save_each(given.out, "experts-few", run_few(points, TARGET, given.folder, sites), medians)
        sys.exit(not all(record["passed"] for record in few))
    if given.what == "launches":
        launches = save_each(given.out, "experts-launches", run_launches(points, TARGET, given.folder), with_host)
        sys.exit(not all(record["passed"] for record in launches))
    if given.what == "trace":
        traced = [trace_experts(point, TARGET, ArtifactStore(given.folder), given.out) for point in points]
        save(given.out, "experts-trace", traced)
        return
    if given.what == "try":
        works = True
        for outcome in run_points(points, TARGET, given.folder, sites, lambda tried: tried.outcome):
            print(json.dumps(outcome), flush=True)
            works &= outcome["passed"] and not outcome["refused"]
        sys.exit(not works)
    timed = run_points(points, TARGET, given.folder, sites, partial(Tried.time, repeats=given.turns, energy_turns=given.joules))
    records = save_each(given.out, "experts", timed, summary, *sites)
    sys.exit(not all(record["passed"] for record in records))


if __name__ == "__main__":
    main()
