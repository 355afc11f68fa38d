"""`megamoe inspect`: compile a configuration and say what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..kernels.moe.config import MegaMoeConfig
from ..problem import ProblemError
from .options import CompiledOptions, takes
from .output_file import require_writable_files, write_whole
from .tables import ANY_WIDTH, artifact_table, config_table, problem_table, ruled, wide_console

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..inspect import Change, Inspection

OUTPUT = "Output"
KINDS_SHOWN = {
    "mma": "mma",
    "utccp": "cp",
    "tma": "tma",
    "mbarrier": "mbar",
    "smem": "smem",
    "gmem": "gmem",
    "float": "float",
    "integer": "int",
}
"""Instruction kinds with their headings; the rest is summed up as other."""


@takes(CompiledOptions)
def inspect(
    given: CompiledOptions,
    ptx: Annotated[Path | None, typer.Option(help="Write the PTX here, with Python lines and functions.", rich_help_panel=OUTPUT)] = None,
    sass: Annotated[Path | None, typer.Option(help="Write the SASS here.", rich_help_panel=OUTPUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel=OUTPUT)] = False,
    diff: Annotated[
        Path | None, typer.Option(help="Compare with a file that --json wrote.", dir_okay=False, exists=True, rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Compile for an architecture, without its GPU, and show registers, spills, memory maps, barriers and instructions per role.

    Instructions are static SASS counts per warp with every branch taken; beside them the CUDA baseline's, where it was measured.
    """
    console = wide_console()
    if as_json and diff is not None:
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
        if ptx is None or sass is not None or as_json or diff is not None:
            raise
        print_summary(console, artifact)
        console.print(Text(f"{ptx} is written; all that comes from SASS is left out: {error}", style="yellow"), soft_wrap=True)
        return
    if sass is not None:
        write_whole(sass, artifact.sass)
    if as_json:
        typer.echo(json.dumps(inspection.as_dict(), indent=2))
    elif diff is not None and before is not None:
        print_changes(console, diff, differences(before, inspection.as_dict()))
    else:
        print_inspection(console, inspection)
        if isinstance(config, MegaMoeConfig) and given.tokens > 0:
            from .predictions import print_model

            print_model(console, config, given.tokens)


def print_summary(console: Console, artifact: Artifact) -> None:
    console.print(problem_table(artifact.config.problem), config_table(artifact.config), artifact_table(artifact), sep="\n")


def print_inspection(console: Console, inspection: Inspection) -> None:
    """All tables of an inspection that have rows."""
    print_summary(console, inspection.artifact)
    tables = (register_table, smem_table, tmem_table, barrier_table, overtaken_table)
    for table in (one(inspection) for one in tables):
        if table.row_count:
            console.print(table)
    console.print(Text(overtaken_text(len(inspection.artifact.overtaken_loads))), soft_wrap=True)
    if inspection.measures:
        console.print(measure_table(inspection, console))
        console.print(Text("A tile is counted without its K blocks or tokens, a combined token with one top-k slot.", style="dim"))
    baseline = inspection.baseline
    if baseline is not None:
        console.print(resource_table(inspection))
        console.print(Text(f"Baseline: {baseline.source}", style="dim"))


def register_table(inspection: Inspection) -> Table:
    """Registers of each group of warps; red where a budget is exceeded or the stack used."""
    table = ruled("Registers per thread after setmaxnreg", "warps", "budget", "highest used", "stack loads", "stack stores")
    for one in inspection.registers:
        style = "" if one.fits else "bold red"
        table.add_row(one.group, str(one.budget), str(one.used), str(one.stack_loads), str(one.stack_stores), style=style)
    return table


def smem_table(inspection: Inspection) -> Table:
    """Fields of shared memory, with what they share their place with."""
    table = ruled("SMEM", "field", "offset", "bytes", "shape", "live")
    for one in inspection.smem:
        live = ", ".join(choice for _, choice in one.lifetimes) or "always"
        table.add_row(one.field.name, f"{one.offset:#x}", f"{one.field.num_bytes:,}", " x ".join(map(str, one.field.shape)), live)
    return table


def tmem_table(inspection: Inspection) -> Table:
    """Fields of tensor memory; no rows on SM90."""
    table = ruled("TMEM", "field", "first column", "columns")
    for one in inspection.tmem:
        table.add_row(one.name, str(one.first), str(one.columns))
    return table


def barrier_table(inspection: Inspection) -> Table:
    """The mbarriers of a CTA, by the kernel's own table."""
    table = ruled("mbarriers of a CTA", "name", "count", "arrivals", "arrives", "transaction bytes", "waits")
    for one in inspection.barriers:
        name = f"{one.name} (even CTA)" if one.leader_only else one.name
        table.add_row(name, str(one.count), str(one.arrivals), one.who, one.transaction or "none", one.waits)
    return table


def overtaken_table(inspection: Inspection) -> Table:
    """Loads that what gives their bytes away does not wait for; no rows where all is well."""
    table = ruled("Loads from SMEM that are overtaken", "load", "address", "by", "address", "line")
    for one in inspection.artifact.overtaken_loads:
        line = f"{Path(one.by.source[0]).name}:{one.by.source[1]}" if one.by.source else ""
        table.add_row(one.load.opcode, f"{one.load.address:#x}", one.by.opcode, f"{one.by.address:#x}", line, style="bold red")
    return table


def overtaken_text(count: int) -> str:
    """The same in words, where all is well too."""
    found = "none" if not count else f"{count}, listed above: the bytes may be overwritten before the load has read them"
    return f"Overtaken loads (from SMEM, not waited for by the arrival that gives their bytes away): {found}."


def measure_table(inspection: Inspection, console: Console) -> Table:
    """`measure_columns` with as many kinds as the console has room for, the last ones among the others; digits are never cut."""
    kinds = list(KINDS_SHOWN)
    while True:
        table = measure_columns(inspection, kinds)
        if not kinds or Measurement.get(console, console.options.update(max_width=ANY_WIDTH), table).maximum <= console.width:
            return table
        kinds.pop()


def measure_columns(inspection: Inspection, shown: list[str]) -> Table:
    """Instructions of each role per unit of work, by kind, beside the baseline where it was measured."""
    baseline = inspection.baseline
    headings = [KINDS_SHOWN[kind] for kind in shown]
    table = ruled("Instructions per unit of work", "role", "per", "all", *(["baseline"] if baseline else []), *headings, "other")
    for one in inspection.measures:
        theirs = baseline.measures.get(one.key) if baseline else None
        worse = theirs is not None and one.instructions > theirs
        total = Text(number(one.instructions), style="bold red" if worse else "bold")
        kinds = [one.kinds.get(kind, 0.0) for kind in shown]
        other = one.instructions - sum(kinds)
        beside = [number(theirs)] if baseline else []
        table.add_row(one.role, one.unit, total, *beside, *(number(count or None) for count in (*kinds, other)))
    return table


def resource_table(inspection: Inspection) -> Table:
    """Resources beside the baseline's, which the inspection must have."""
    assert inspection.baseline is not None
    found, baseline = inspection.as_dict(), inspection.baseline
    ours = {**found["resources"], "stages": found["config"]["stages"], "spill_bytes": found["resources"]["stack_bytes"]}
    table = ruled("Resources", "resource", "ours", "baseline")
    for name, value in baseline.resources.items():
        table.add_row(name.replace("_", " "), f"{ours[name]:,}", f"{value:,}")
    return table


def print_changes(console: Console, path: Path, changes: list[Change]) -> None:
    """What differs from the file of an earlier inspection."""
    if not changes:
        console.print(Text(f"Nothing differs from {path}."))
        return
    table = ruled(f"Against {path}", "what", "before", "after")
    table.columns[0].min_width = min(max(len(one.path) for one in changes), console.width // 2)  # names in one piece, where they fit
    for one in changes:
        table.add_row(one.path, str(one.before), str(one.after))
    console.print(table)


def number(value: float | None) -> str:
    """At most one decimal; a dot for nothing."""
    return "·" if value is None else f"{value:.1f}".removesuffix(".0")
