"""Times FP8 GEMMs on one GPU, beside DeepGEMM and torch, in one process and in turns.

    python bench/gemm.py prepare FOLDER [--points TEXT ...]      where the DSL is: compiles the candidates of the points
    python bench/gemm.py run FOLDER [--points TEXT ...] [--baseline SITE] [--out FOLDER]      where a GPU is
    python bench/gemm.py counters FOLDER [the same]              where a GPU and Nsight Compute are: counters of one launch of each
    python bench/gemm.py tune FILE                               anywhere: enters the winners of a run into the GPU's table

    python bench/gemm.py table FILE                              anywhere: the table of docs/lab/gemms.md

A point is meant by a part of its name: "dense 4096x7168x2048", "2112x7168", "packed".  SITE has unpacked wheels, deep_gemm among them.
With --recipe fp8xmxfp4 weights are E2M1, and the same point with E4M3 weights runs in the same turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from gemms.counters import count, counters_table, launch_once
from gemms.points import MEASURED, find_points
from megamoe_dsl.bench.gemm.point import MOST
from megamoe_dsl.bench.gemm.run import GemmRun
from megamoe_dsl.bench.host import Host
from megamoe_dsl.blocks.gemm.problem import GEMM_RECIPES
from megamoe_dsl.problem import ProblemError

PROFILED_LIMIT_S = 300.0


def prepare(given: argparse.Namespace) -> None:
    """Compiles what the folder lacks."""
    usual = tuple(point.having(GEMM_RECIPES[0]) for point in given.points if point.problem.decodes)
    runs = (GemmRun(given.points, given.folder, given.folder), given.most), (GemmRun(usual, given.folder, given.folder), 0)
    count = sum(run.compile(Host.typical(), given.jobs, most) for run, most in runs)
    print(f"{count} kernels into {given.folder}")


def run(given: argparse.Namespace) -> None:
    """Checks and times, prints a table per point and writes a JSON file."""
    from gemms.baselines import RunBeside, find_package

    find_package(given.baseline)
    run = RunBeside(given.points, given.folder, given.out, variants=True, site=given.baseline)
    found = run.run(Host.find())
    sys.exit(not all(map(run.right, found.records)))


def counters(given: argparse.Namespace) -> None:
    """Counts under the profiler, which runs this command again, prints a table and writes a JSON file."""
    run = GemmRun(given.points, given.folder, given.out, variants=True)
    if given.profiled:
        launch_once(run, Host.find(), given.baseline)
        return
    path, records = count(run, [sys.executable, *sys.argv, "--profiled"], PROFILED_LIMIT_S, given.baseline)
    print(f"{counters_table(records)}\nwrote {path}")


def tune(given: argparse.Namespace) -> None:
    """Writes the table of the GPU that the run was on."""
    from megamoe_dsl.bench.tuning import GEMMS
    from megamoe_dsl.tuned import GemmEntry, Table

    found = GEMMS.read(given.file)
    table, _ = GEMMS.enter(Table.read(found.gpu, kind=GemmEntry), found)
    print(f"wrote {table.write()}: {len(table.entries)} entries")


def show_table(given: argparse.Namespace) -> None:
    """Prints the table of docs/lab/gemms.md."""
    from gemms.report import markdown

    print(markdown(json.loads(given.file.read_text())["records"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Times FP8 GEMMs on one GPU.")
    commands = parser.add_subparsers(required=True)
    for name, action in (("prepare", prepare), ("run", run), ("counters", counters)):
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        command.add_argument("folder", type=Path, help="compiled kernels")
        command.add_argument("--points", nargs="*", default=[], help="parts of names; all points by default")
        command.add_argument("--recipe", default=GEMM_RECIPES[0], help=" or ".join(MEASURED) + "; the first by default")
        if name == "prepare":
            command.add_argument("--most", type=int, default=MOST, help="candidates of a point")
            command.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
        else:
            command.add_argument("--baseline", type=Path, help="folder of unpacked wheels")
            command.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
        if name == "counters":
            command.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    showing = commands.add_parser("table")
    showing.set_defaults(action=show_table)
    showing.add_argument("file", type=Path, help="what `run` wrote")
    entering = commands.add_parser("tune")
    entering.set_defaults(action=tune)
    entering.add_argument("file", type=Path, help="what `run` wrote")
    given = parser.parse_args()
    try:
        if "points" in given:
            given.points = tuple(find_points(given.points, given.recipe))
        given.action(given)
    except ProblemError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
