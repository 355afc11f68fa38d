"""`megamoe inspect`: compile a configuration and say what came out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..options.option import option
from ..problem import ProblemError
from .options import CompiledOptions, takes
from .output_file import require_writable_files, write_whole
from .tables import artifact_table, config_table, problem_table, ruled, wide_console

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..inspect import Change, Inspection

OUTPUT = "Output"
MOVED, PLACES = ("smem.", "tmem."), (".offset", ".first")  # Fields whose offset alone has changed, because one before them has.
KINDS_SHOWN = {
    "mma": "mma", "utccp": "cp", "tma": "tma", "mbarrier": "mbar", "smem": "smem", "gmem": "gmem", "float": "float", "integer": "int",
}  # fmt: skip
"""Instruction kinds with their headings; the rest is summed up as other."""


@dataclass(frozen=True)
class InspectOptions(CompiledOptions):
    """A kernel, and the files to write or compare."""

    ptx: Path | None = option(None, "Write the PTX here, with Python lines and functions.", OUTPUT)
    sass: Path | None = option(None, "Write the SASS here.", OUTPUT)
    json: bool = option(False, "Print JSON and nothing else.", OUTPUT)
    diff: Path | None = option(None, "Compare with a file that --json wrote.", OUTPUT)


@takes(InspectOptions)
def inspect(given: InspectOptions) -> None:
    """Compile for an architecture, without its GPU, and show registers, spills, memory maps, barriers and instructions per role.
    Instructions are static SASS counts per warp with every branch taken."""
    console = wide_console()
    ptx, sass, diff = given.ptx, given.sass, given.diff
    if given.json and diff is not None:
        raise ProblemError("--diff", str(diff), "left out with --json")
    require_writable_files({"--ptx": ptx, "--sass": sass})
    from ..inspect.inspection import read_inspection

    before = None if diff is None else read_inspection(diff)
    config = given.chosen

    from ..artifact.compile import compile_kernel
    from ..inspect import DisassemblyError, Inspection, annotate, differences

    with Console(stderr=True).status("compiling"):
        artifact = compile_kernel(config, line_info=True)
    if ptx is not None:
        write_whole(ptx, annotate(artifact.ptx))
    try:
        with Console(stderr=True).status("reading SASS"):
            inspection = Inspection.of(artifact)
    except DisassemblyError as error:
        if ptx is None or sass is not None or given.json or diff is not None:
            raise
        print_summary(console, artifact)
        console.print(Text(f"{ptx} is written; all that comes from SASS is left out: {error}", style="yellow"), soft_wrap=True)
        return
    if sass is not None:
        write_whole(sass, artifact.sass)
    if given.json:
        typer.echo(json.dumps(inspection.as_dict(), indent=2))
    elif diff is not None and before is not None:
        print_changes(console, diff, differences(before, inspection.as_dict()))
    else:
        print_inspection(console, inspection)


def print_summary(console: Console, artifact: Artifact) -> None:
    console.print(problem_table(artifact.config.problem), config_table(artifact.config), artifact_table(artifact), sep="\n")


def print_inspection(console: Console, inspection: Inspection) -> None:
    """All tables of an inspection that have rows."""
    print_summary(console, inspection.artifact)
    for table in tables_of(inspection):
        if table.row_count:
            console.print(table)
    count = len(inspection.artifact.overtaken_loads)
    found = "none" if not count else f"{count}, listed above: the bytes may be overwritten before the load has read them"
    said = f"Overtaken loads (from SMEM, not waited for by the arrival that gives their bytes away): {found}."
    console.print(Text(said), soft_wrap=True)
    if inspection.measures:
        console.print(measure_table(inspection))
        console.print(Text("A tile is counted without its K blocks or tokens, a combined token with one top-k slot.", style="dim"))


def tables_of(inspection: Inspection) -> Iterator[Table]:
    """Registers (red above the budget or with stack use), SMEM, TMEM, mbarriers, overtaken loads."""
    registers, barriers, overtaken = inspection.registers, inspection.barriers, inspection.artifact.overtaken_loads
    yield ruled(
        "Registers per thread after setmaxnreg",
        ("warps", "budget", "highest used", "stack loads", "stack stores"),
        [(one.group, one.budget, one.used, one.stack_loads, one.stack_stores) for one in registers],
        ["" if one.fits else "bold red" for one in registers],
    )
    fields = [(one, ", ".join(choice for _, choice in one.lifetimes) or "always") for one in inspection.smem]
    yield ruled(
        "SMEM",
        ("field", "offset", "bytes", "shape", "live"),
        [(p.field.name, f"{p.offset:#x}", f"{p.field.num_bytes:,}", " x ".join(map(str, p.field.shape)), live) for p, live in fields],
    )
    yield ruled("TMEM", ("field", "first column", "columns"), [(one.name, one.first, one.columns) for one in inspection.tmem])
    names = [f"{one.name} (even CTA)" if one.leader_only else one.name for one in barriers]
    yield ruled(
        "mbarriers of a CTA",
        ("name", "count", "arrivals", "arrives", "transaction bytes", "waits"),
        [(name, b.count, b.arrivals, b.who, b.transaction or "none", b.waits) for name, b in zip(names, barriers, strict=True)],
    )
    lines = [f"{Path(one.by.source[0]).name}:{one.by.source[1]}" if one.by.source else "" for one in overtaken]
    yield ruled(
        "Loads from SMEM that are overtaken",
        ("load", "address", "by", "address", "line"),
        [
            (one.load.opcode, f"{one.load.address:#x}", one.by.opcode, f"{one.by.address:#x}", line)
            for one, line in zip(overtaken, lines, strict=True)
        ],
        ["bold red"] * len(overtaken),
    )


def measure_table(inspection: Inspection) -> Table:
    """Instructions of each role per unit of work, by kind."""
    rows, headings = [], ("role", "per", "all", *KINDS_SHOWN.values(), "other")
    for one in inspection.measures:
        kinds = [one.kinds.get(kind, 0.0) for kind in KINDS_SHOWN]
        counts = [number(count or None) for count in (*kinds, one.instructions - sum(kinds))]
        rows.append((one.role, one.unit, Text(number(one.instructions), style="bold"), *counts))
    return ruled("Instructions per unit of work", headings, rows)


def print_changes(console: Console, path: Path, changes: list[Change]) -> None:
    """What differs from the file of an earlier inspection."""
    if not changes:
        console.print(Text(f"Nothing differs from {path}."))
        return
    moved = [one for one in changes if one.path.startswith(MOVED) and one.path.endswith(PLACES) and None not in (one.before, one.after)]
    shown = [one for one in changes if one not in moved]
    if shown:
        console.print(ruled(f"Against {path}", ("what", "before", "after"), [(one.path, one.before, one.after) for one in shown]))
    if moved:
        console.print(Text(f"Fields of SMEM and TMEM at another offset: {len(moved)}; --json lists offsets.", style="dim"), soft_wrap=True)


def number(value: float | None) -> str:
    """At most one decimal; a dot for nothing."""
    return "·" if value is None else f"{value:.1f}".removesuffix(".0")
