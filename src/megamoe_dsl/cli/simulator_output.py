"""What every simulation shows: steps while data is made, instructions while it runs, then findings and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from .tables import artifact_table, ruled

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..kernels.kernel import KernelConfig
    from ..sim import Report


def compiled(console: Console, configs: Sequence[KernelConfig]) -> list[Artifact]:
    """The kernels of these configurations, with a table of each.  Findings and faults will name Python lines."""
    from ..artifact.compile import compile_kernel

    with console.status("compiling"):
        artifacts = [compile_kernel(one, line_info=True) for one in configs]
    for artifact in artifacts:
        console.print(artifact_table(artifact))
    return artifacts


def verdict(unequal: int) -> Text:
    """A cell of a table: pass, or how many elements do not match."""
    return Text(f"{unequal:,} mismatches", style="bold red") if unequal else Text("pass", style="green")


WARNINGS = """A warning is a read of what nobody has written, such as columns of an accumulator beyond a tile's tokens: hardware gives any
value. That is no error as long as no such value reaches a result, which the comparison above shows."""


@contextmanager
def steps(console: Console) -> Iterator[Callable[[str], None]]:
    """A line that the `progress` of `random_case` keeps up to date; it goes away at the end."""
    with Progress(
        SpinnerColumn(), TextColumn("making data: {task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as shown:
        task = shown.add_task("", total=None)
        yield lambda step: shown.update(task, description=step)


@contextmanager
def counting(console: Console) -> Iterator[Callable[[int, float], None]]:
    """A line that a simulator's `progress` keeps up to date; it goes away at the end."""
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("loading the PTX", total=None)

        def show(instructions: int, seconds: float) -> None:
            progress.update(task, description=f"{instructions:,} warp instructions, {instructions / max(seconds, 1e-9):,.0f}/s")

        yield show


def print_reports(console: Console, reports: Sequence[Report], *, race: bool) -> None:
    """What the simulator saw in each launch, then every finding and warning."""
    table = ruled("What the simulator saw", "launch", "race findings", "warnings", "warp instructions", "seconds")
    for number, report in enumerate(reports, 1):
        findings = str(len(report.findings)) if race else "not looked for"
        table.add_row(str(number), findings, str(sum(report.warnings.values())), f"{report.instructions:,}", f"{report.seconds:.1f}")
    console.print(table)
    for report in reports:
        for finding in report.findings:
            console.print(Text(f"race: {finding}", style="bold red"), soft_wrap=True)
        for warning, count in report.warnings.items():
            console.print(Text(f"warning: {warning} ({count} times)", style="yellow"), soft_wrap=True)
    if any(report.warnings for report in reports):
        console.print(Text(WARNINGS, style="dim"), soft_wrap=True)


def print_outcome(console: Console, passed: bool, proved: str, *, race: bool) -> None:
    """The last line: PASS with what was proved, or FAIL."""
    outcome = f"PASS: {proved}" + ("; no race found" if race else "") if passed else "FAIL"
    console.print(Text(outcome, style="bold green" if passed else "bold red"))
