"""`megamoe simulate`: the compiled PTX on simulated ranks, compared with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..problem import ProblemError
from .errors import one_line_errors
from .estimate import LONG_SECONDS, Estimate, physical_memory
from .shape import (
    ArchName,
    BlockM,
    Clamp,
    Experts,
    Hidden,
    Intermediate,
    Lookahead,
    PresetName,
    Ranks,
    Stages,
    Topk,
    asked_arch,
    build_config,
    build_problem,
    parse_tokens,
)
from .tables import artifact_table, config_table, problem_table, ruled

if TYPE_CHECKING:
    from ..cases import Case
    from ..kernels.mega_moe.config import MegaMoeConfig
    from ..runtime.comparison import RankComparison
    from ..runtime.simulated import SimulatedMoE
    from ..sim import Report

FAILED = 1
DATA, RUN = "Data", "Simulation"


def simulate(
    preset: PresetName = None,
    hidden: Hidden = None,
    intermediate: Intermediate = None,
    experts: Experts = None,
    topk: Topk = None,
    ranks: Ranks = None,
    clamp: Clamp = None,
    tokens: Annotated[str, typer.Option(help="Tokens of each rank, as in 13,7; one number for all.", rich_help_panel=DATA)] = "13",
    seed: Annotated[int, typer.Option(help="Of the data and of the schedule.", rich_help_panel=DATA)] = 0,
    mask: Annotated[float, typer.Option(help="Fraction of top-k slots set to -1.", rich_help_panel=DATA)] = 0.0,
    skew: Annotated[bool, typer.Option("--skew", help="Most tokens choose the same few experts.", rich_help_panel=DATA)] = False,
    random: Annotated[
        bool, typer.Option("--random", help="Normal data within an error bound, not exact data.", rich_help_panel=DATA)
    ] = False,
    block_m: BlockM = None,
    lookahead: Lookahead = None,
    stages: Stages = None,
    arch: ArchName = None,
    sms: Annotated[int, typer.Option(help="CTAs of each rank, an even number.", rich_help_panel=RUN)] = 4,
    launches: Annotated[
        int,
        typer.Option(
            help="Launches on the same buffers, each with its own data; token counts move one rank on.", min=1, rich_help_panel=RUN
        ),
    ] = 1,
    no_race: Annotated[bool, typer.Option("--no-race", help="Without the race detector: faster.", rich_help_panel=RUN)] = False,
) -> None:
    """Compile the kernel, run its PTX on simulated ranks and compare y with the reference.

    Exit code 0: equal, no finding.  1: a mismatch or a race finding.  2: bad input, a fault or a deadlock.
    """
    console = Console()
    with one_line_errors():
        num_ranks = 2 if ranks is None and preset is None else ranks
        counts = parse_tokens(tokens, 8 if num_ranks is None else num_ranks)
        architecture = asked_arch(arch)
        problem = build_problem(
            max(1, *counts),
            preset_name=preset,
            clamp=clamp,
            arch=architecture,
            hidden=hidden,
            intermediate=intermediate,
            num_experts=experts,
            topk=topk,
            num_ranks=num_ranks,
        )
        config = build_config(problem, max(counts), architecture, sms, block_m=block_m, lookahead=lookahead, num_stages=stages)
        if not no_race:
            require_agents(config)
        from ..cases import check_draw

        for launch in range(launches):
            check_draw(problem, rotate(counts, launch), seed + launch, mask)
        estimate = Estimate.of(config, counts, launches, exact=not random)
        estimate.require(config, physical_memory())
        console.print(problem_table(problem), config_table(config), sep="\n")
        console.print(f"A rough estimate: {estimate}.", soft_wrap=True)
        if estimate.seconds > LONG_SECONDS:
            console.print(Text("That is long: fewer --experts, --ranks or --tokens make it shorter.", style="yellow"), soft_wrap=True)

        from ..artifact.compile import compile_kernel
        from ..cases import random_case
        from ..runtime.simulated import SimulatedMoE

        with console.status("compiling"):
            artifact = compile_kernel(config, line_info=True)  # findings and faults then name Python lines
        console.print(artifact_table(artifact))
        with console.status("making data and the reference"):
            cases = [random_case(problem, rotate(counts, i), seed + i, mask=mask, skew=skew, exact=not random) for i in range(launches)]
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
            task = progress.add_task("loading the PTX", total=None)

            def show(instructions: int, seconds: float) -> None:
                progress.update(task, description=f"{instructions:,} warp instructions, {instructions / max(seconds, 1e-9):,.0f}/s")

            moe = SimulatedMoE(artifact, cases[0].weights, seed=seed, race=not no_race, progress=show)
            results = run_launches(moe, cases)
    if not print_results(console, results, exact=not random, race=not no_race):
        raise typer.Exit(FAILED)


def require_agents(config: MegaMoeConfig) -> None:
    """Raises `ProblemError` when the race detector cannot tell apart the warps of all ranks."""
    from ..sim.agents import MAX_AGENTS, agents_needed
    from ..sim.geometry import Geometry

    ranks = config.problem.num_ranks
    needed = agents_needed([Geometry((config.num_sms, 1, 1), (config.num_threads, 1, 1))] * ranks)
    if needed > MAX_AGENTS:
        allowed = f"less, or given with --no-race: {needed:,} warps on {ranks} ranks, the race detector tells {MAX_AGENTS:,} agents apart"
        raise ProblemError("num_sms", config.num_sms, allowed)


def rotate(counts: list[int], by: int) -> list[int]:
    """Later launches give each rank another rank's number of tokens."""
    by %= len(counts)
    return counts[by:] + counts[:by]


def run_launches(moe: SimulatedMoE, cases: list[Case]) -> list[tuple[list[RankComparison], Report]]:
    """One launch per case on the same buffers."""
    from ..runtime.buffers import Inputs
    from ..runtime.comparison import compare

    results = []
    for index, case in enumerate(cases):
        if index:
            moe.load_weights(case.weights)
        inputs = [Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]
        y, report = moe(inputs)
        results.append((compare(case, y), report))
    return results


def print_results(console: Console, results: list[tuple[list[RankComparison], Report]], *, exact: bool, race: bool) -> bool:
    """The comparison table and the verdict; whether everything passed."""
    table = ruled("y against the reference", "launch", "rank", "tokens", "elements", "equal", "max error", "of bound", "verdict")
    for number, (ranks, _) in enumerate(results, 1):
        for one in ranks:
            verdict = Text("pass", style="green") if one.passed else Text(f"{one.violations:,} mismatches", style="bold red")
            equal, share = f"{one.elements - one.unequal:,}", "exact" if exact else f"{one.worst:.1%}"
            table.add_row(str(number), str(one.rank), str(one.tokens), f"{one.elements:,}", equal, f"{one.max_error:.3g}", share, verdict)
    console.print(table)
    table = ruled("What the simulator saw", "launch", "race findings", "warnings", "warp instructions", "seconds")
    for number, (_, report) in enumerate(results, 1):
        findings = str(len(report.findings)) if race else "not looked for"
        table.add_row(str(number), findings, str(sum(report.warnings.values())), f"{report.instructions:,}", f"{report.seconds:.1f}")
    console.print(table)
    for _, report in results:
        for finding in report.findings:
            console.print(Text(f"race: {finding}", style="bold red"), soft_wrap=True)
        for warning, count in report.warnings.items():
            console.print(Text(f"warning: {warning} ({count} times)", style="yellow"), soft_wrap=True)
    passed = all(one.passed for ranks, _ in results for one in ranks) and not any(report.findings for _, report in results)
    proved = "every element equals the reference bit for bit" if exact else "every element is within the error bound"
    outcome = f"PASS: {proved}" + ("; no race found" if race else "") if passed else "FAIL"
    console.print(Text(outcome, style="bold green" if passed else "bold red"))
    return passed
