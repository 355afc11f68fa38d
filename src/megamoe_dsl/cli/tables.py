"""Output of commands: tables of a problem, a configuration and an artifact, and of every simulation from its data to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..kernels.kernel import KernelConfig
from ..kernels.registry import kernel_of
from ..problem import Problem
from ..recipe import BF16

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..sim import Report

FAILED = 1  # exit code of what ran and was wrong
PIPE_WIDTH = 120


def wide_console() -> Console:
    """A console on stdout, at least 120 columns wide unless stdout is a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, PIPE_WIDTH))


def facts(title: str, rows: Iterable[tuple[str, object]]) -> Table:
    """Makes a table of two columns, names and values, under a title."""
    table = Table(title=Text(title, style="bold"), title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="cyan", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(str(value)))
    return table


def ruled(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]] = (), styles: Iterable[str] = ()) -> Table:
    """A table with a line under its headings; `styles` are rich's styles of the rows."""
    table = Table(title=Text(title, style="bold"), title_justify="left", header_style="", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, style="" if place else "cyan", overflow="fold")
    for row in rows:
        table.add_row(*(one if isinstance(one, Text) else Text(str(one)) for one in row))
    for added, style in zip(table.rows, styles, strict=False):
        added.style = style
    return table


def problem_table(problem: Any) -> Table:
    """A row for each property of a MoE layer, or for each field of another problem."""
    if not isinstance(problem, Problem):
        return facts("Problem", [(one.name, getattr(problem, one.name)) for one in fields(problem)])
    clamp = "none" if problem.activation_clamp is None else problem.activation_clamp
    extras = {"biases": problem.biases, "top-k weights applied in combine": problem.weigh_results}
    return facts(
        "Problem",
        [
            ("ranks", problem.num_ranks),
            ("hidden, intermediate", f"{problem.hidden}, {problem.intermediate}"),
            ("experts, top-k", f"{problem.num_experts} ({problem.experts_per_rank} per rank), {problem.topk}"),
            ("tokens per rank", f"up to {problem.max_tokens_per_rank}"),
            *([] if problem.combine == BF16 else [("results travel as", problem.combine)]),
            ("activation", ", ".join((problem.activation, *(name for name, has in extras.items() if has)))),
            ("recipe", f"{problem.recipe}, activation clamp {clamp}, {'fast' if problem.fast_math else 'precise'} math"),
        ],
    )


def config_table(config: KernelConfig) -> Table:
    return facts("Configuration", kernel_of(config).facts(config))


def artifact_table(artifact: Artifact) -> Table:
    """Compile time, registers, spills, SMEM and TMEM of a compiled kernel."""
    resources, config = artifact.resources, artifact.config
    stages = f", {config.num_stages} stages" if hasattr(config, "num_stages") else ""
    rows = [
        ("compiled", f"for {artifact.arch} in {artifact.seconds:.2f} s; PTX of {artifact.ptx.count(chr(10))} lines"),
        ("registers", f"{resources.registers} per thread at launch"),
        ("stack and spills", f"{resources.stack_bytes} bytes"),
        ("SMEM", f"{artifact.dynamic_smem} of {config.arch.smem_bytes} bytes{stages}"),
    ]
    if plan := config.tmem:
        rows.append(("TMEM", f"{plan.used} of {plan.allocated} allocated columns"))
    return facts("Artifact", rows)


def compiled(console: Console, configs: Sequence[KernelConfig]) -> list[Artifact]:
    """Compiles the configurations with line info, so that findings name Python lines, and prints a table for each kernel."""
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
def status_line(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """A transient line with a spinner and the elapsed time; yields a function that sets its text."""
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda said: progress.update(task, description=said)


@contextmanager
def steps(console: Console) -> Iterator[Callable[[str], None]]:
    with status_line(console, "making data: ") as show:
        yield lambda step: show(f"making data: {step}")


@contextmanager
def counting(console: Console) -> Iterator[Callable[[int, float], None]]:
    with status_line(console, "loading the PTX") as show:
        yield lambda count, seconds: show(f"{count:,} warp instructions, {count / max(seconds, 1e-9):,.0f}/s")


def print_reports(console: Console, reports: Sequence[Report], *, race: bool) -> None:
    """Prints the simulator's counts of each launch, then every finding and warning."""
    headings = ("launch", "race findings", "warnings", "warp instructions", "seconds")
    rows = [
        (number, len(one.findings) if race else "not looked for", sum(one.warnings.values()), f"{one.instructions:,}", f"{one.seconds:.1f}")
        for number, one in enumerate(reports, 1)
    ]
    console.print(ruled("What the simulator saw", headings, rows))
    for report in reports:
        for finding in report.findings:
            console.print(Text(f"race: {finding}", style="bold red"), soft_wrap=True)
        for warning, count in report.warnings.items():
            console.print(Text(f"warning: {warning} ({count} times)", style="yellow"), soft_wrap=True)
    if any(report.warnings for report in reports):
        console.print(Text(WARNINGS, style="dim"), soft_wrap=True)


def conclude(console: Console, right: bool, reports: Sequence[Report], proved: str, *, race: bool) -> bool:
    """Prints the reports and a last line, PASS with what was proved or FAIL; returns whether the launches passed."""
    print_reports(console, reports, race=race)
    passed = right and not any(report.findings for report in reports)
    outcome = f"PASS: {proved}" + ("; no race found" if race else "") if passed else "FAIL"
    console.print(Text(outcome, style="bold green" if passed else "bold red"))
    return passed
