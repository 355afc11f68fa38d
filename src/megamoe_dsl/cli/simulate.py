"""`megamoe simulate`: the compiled PTX on simulated ranks, compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ..kernels.gemm.family import GatherGemmKernel, GemmKernel, VarlenKKernel
from ..kernels.moe.family import MegaMoeKernel
from ..kernels.moe.halves.family import EP_KERNELS
from ..kernels.moe.pre_dispatch.config import PreDispatchConfig
from ..kernels.moe.pre_dispatch.family import PreDispatchKernel
from ..kernels.moe.unfused.family import STAGES, stage_configs
from ..kernels.registry import find_kernel, kernel_of
from ..options.option import numbers
from ..presets import preset as find_preset
from ..problem import MAX_RANKS, ProblemError
from .estimate import LONG_SECONDS, SHORTER, Estimate, physical_memory
from .options import TILE, KernelOptions, takes
from .tables import FAILED, compiled, conclude, config_table, counting, problem_table, ruled, steps, verdict

if TYPE_CHECKING:
    from ..cases import Case
    from ..kernels.kernel import KernelConfig
    from ..runtime.simulated import RankComparison, SimulatedMoE
    from ..sim import Report

DATA, RUN = "Data", "Simulation"
DEFAULT_RANKS = 2
STAGE_NAMES = tuple(stage.name for stage in STAGES)
EP_NAMES = tuple(kernel.name for kernel in EP_KERNELS)
SIMULATED = (
    MegaMoeKernel.name,
    PreDispatchKernel.name,
    GemmKernel.name,
    GatherGemmKernel.name,
    VarlenKKernel.name,
    *STAGE_NAMES,
    *EP_NAMES,
)


@takes(KernelOptions)
def simulate(
    given: KernelOptions,
    tokens: Annotated[str, typer.Option(help="Tokens of each rank, as in 13,7; one number for all.", rich_help_panel=DATA)] = "13",
    seed: Annotated[int, typer.Option(help="Of the data and of the schedule.", rich_help_panel=DATA)] = 0,
    mask: Annotated[float, typer.Option(help="Fraction of top-k slots set to -1.", rich_help_panel=DATA)] = 0.0,
    skew: Annotated[bool, typer.Option("--skew", help="Most tokens choose the same few experts.", rich_help_panel=DATA)] = False,
    random: Annotated[
        bool, typer.Option("--random", help="Normal data within an error bound, not exact data.", rich_help_panel=DATA)
    ] = False,
    sms: Annotated[int, typer.Option(help="CTAs of each rank; of mega_moe an even number.", rich_help_panel=RUN)] = 4,
    launches: Annotated[
        int | None,
        typer.Option(
            help="Launches on the same buffers, each with its own data; token counts move one rank on.",
            min=1,
            max=1000,
            rich_help_panel=RUN,
            show_default="1",
        ),
    ] = None,
    no_race: Annotated[bool, typer.Option("--no-race", help="Without the race detector: faster.", rich_help_panel=RUN)] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Start what is estimated to take more than an hour.", rich_help_panel=RUN)] = False,
) -> None:
    """Compile the kernel, run its PTX on simulated ranks and compare y with the reference, the inputs of pre_dispatch with quant.

    With a stage of the unfused layer as --kernel all stages run, one launch after another; with one of the two expert-parallel kernels
    both run, with drawn activations between them.

    Exit code 0: equal, no finding.  1: a mismatch or a race finding.  2: bad input, a fault or a deadlock.
    """
    console = Console()
    check_kernel(given.kernel)
    if not given.of_layer:
        leave_out({"mask": mask or None, "skew": skew or None}, f"--kernel {given.kernel}")
        from .simulations import simulate_given

        if not simulate_given(console, given, tokens, sms, seed, exact=not random, launches=launches or 1, race=not no_race, yes=yes):
            raise typer.Exit(FAILED)
        return
    numerics = {name: getattr(given, name) or None for name in ("clamp", "activation", "biases", "weigh_results")}
    if given.kernel in EP_NAMES:
        leave_out(numerics, f"--kernel {given.kernel}")
    if given.kernel == PreDispatchKernel.name:
        tile = {name: getattr(given, name) for name in TILE}
        leave_out({**numerics, "random": random or None, **tile, "launches": launches}, f"--kernel {given.kernel}")
    preset_ranks = DEFAULT_RANKS if given.preset is None else find_preset(given.preset).num_ranks
    ranks = preset_ranks if given.ranks is None else given.ranks
    counts = parse_tokens(tokens, ranks)
    problem = replace(given, ranks=ranks).problem(max(1, *counts))
    from ..cases import check_draw, random_case

    if given.kernel == PreDispatchKernel.name:
        inputs = PreDispatchConfig(problem, sms, given.architecture.name)
        check_draw(problem, counts, seed, mask)
        announce(console, inputs, Estimate.of_inputs(inputs, counts), race=not no_race, yes=yes)
        from .simulations import simulate_inputs

        if not simulate_inputs(console, inputs, counts, seed, mask=mask, skew=skew, race=not no_race):
            raise typer.Exit(FAILED)
        return
    if given.kernel in EP_NAMES:
        configs = tuple(given.config(problem, max(counts), sms, name) for name in EP_NAMES)
        config = configs[0]
    else:
        config = given.config(problem, max(counts), sms)
        configs = stage_configs(config) if given.kernel in STAGE_NAMES else (config,)
    launches = launches or 1
    for launch in range(launches):
        check_draw(problem, rotate(counts, launch), seed + launch, mask)
    announce(console, config, Estimate.of(config, counts, launches, exact=not random), race=not no_race, yes=yes)

    def draw() -> list[Case]:
        with steps(console) as show:
            options = dict[str, Any](mask=mask, skew=skew, exact=not random, progress=show)
            return [random_case(problem, rotate(counts, launch), seed + launch, **options) for launch in range(launches)]

    if given.kernel in EP_NAMES:
        from .simulations import run_ep

        if not run_ep(console, configs, draw(), seed, exact=not random, race=not no_race):
            raise typer.Exit(FAILED)
        return

    from ..runtime.simulated import SimulatedMoE

    artifacts = compiled(console, configs)
    cases = draw()
    with counting(console) as show:
        weights, options = cases[0].weights, dict[str, Any](seed=seed, race=not no_race, progress=show)
        results = run_launches(SimulatedMoE(artifacts, weights, **options), cases)
    if not print_results(console, results, exact=not random, race=not no_race):
        raise typer.Exit(FAILED)


def announce(console: Console, config: KernelConfig, estimate: Estimate, *, race: bool, yes: bool) -> None:
    """Says what will run and roughly what it takes.  Raises `ProblemError` for more than the memory or the race detector has room for."""
    if race:
        require_agents(config)
    p = config.problem
    estimate.require_memory(physical_memory(), ("num_experts", p.num_experts), ("tokens", p.max_tokens_per_rank))
    console.print(problem_table(config.problem), config_table(config), sep="\n")
    console.print(f"A rough estimate: {estimate} after compiling.", soft_wrap=True)
    if estimate.seconds > LONG_SECONDS:
        console.print(Text(f"That is long: {SHORTER}.", style="yellow"), soft_wrap=True)
    estimate.require_yes(yes)


def check_kernel(name: str) -> None:
    """Raises `ProblemError` for a kernel that is unknown or that this command cannot simulate."""
    if find_kernel(name).name not in SIMULATED:
        raise ProblemError("kernel", name, f"one that this command simulates: {', '.join(SIMULATED)}")


def leave_out(options: Mapping[str, object], reason: str) -> None:
    """Raises `ProblemError` for the first of these that is given: not None."""
    for name, value in options.items():
        if value is not None:
            raise ProblemError(f"--{name.replace('_', '-')}", value, f"left out with {reason}")


def parse_tokens(text: str, num_ranks: int) -> list[int]:
    """One number per rank, as in 13,7; a single number stands for every rank.  Raises `ProblemError`."""
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ProblemError("num_ranks", num_ranks, f"between 1 and {MAX_RANKS}")
    counts = numbers("tokens", text, 0)
    if len(counts) == 1:
        counts *= num_ranks
    if len(counts) != num_ranks:
        raise ProblemError("tokens", text, f"one number, or one for each of {num_ranks} ranks")
    return counts


def require_agents(config: KernelConfig) -> None:
    """Raises `ProblemError` for more warps, writers of mbarriers and tensor pipes than the race detector tells apart."""
    from ..sim.clock import MAX_AGENTS, agents_needed
    from ..sim.geometry import Geometry

    ranks, kernel = config.problem.num_ranks, kernel_of(config)
    engines = config.num_sms * ranks * (bool(kernel.barriers(config)) + (kernel.tmem(config) is not None))
    needed = engines + agents_needed([Geometry((config.num_sms, 1, 1), (config.num_threads, 1, 1))] * ranks)
    if needed > MAX_AGENTS:
        counted = f"{needed:,} warps and engines on {ranks} ranks, the race detector tells {MAX_AGENTS:,} apart"
        raise ProblemError("num_sms", config.num_sms, f"less, or given with --no-race: {counted}")


def rotate(counts: list[int], by: int) -> list[int]:
    """Later launches give each rank another rank's number of tokens."""
    by %= len(counts)
    return counts[by:] + counts[:by]


def run_launches(moe: SimulatedMoE, cases: list[Case]) -> list[tuple[list[RankComparison], Report]]:
    """One launch per case on the same buffers."""
    from ..runtime.buffers import Inputs
    from ..runtime.simulated import compare

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
    headings = ("launch", "rank", "tokens", "elements", "equal", "max error", "of bound", "verdict")
    rows = [
        (
            *(number, one.rank, one.tokens, f"{one.elements:,}", f"{one.elements - one.unequal:,}", f"{one.max_error:.3g}"),
            *("exact" if exact else f"{one.worst:.1%}", verdict(one.violations)),
        )
        for number, (ranks, _) in enumerate(results, 1)
        for one in ranks
    ]
    console.print(ruled("y against the reference", headings, rows))
    proved = "every element equals the reference bit for bit" if exact else "every element is within the error bound"
    right = all(one.passed for ranks, _ in results for one in ranks)
    return conclude(console, right, [report for _, report in results], proved, race=race)
