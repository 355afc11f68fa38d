"""`megamoe simulate`: the compiled PTX on simulated ranks, compared with the reference."""

from __future__ import annotations

from dataclasses import replace

import typer
from rich.console import Console
from rich.text import Text

from ..kernels.gemm.family import GatherGemmKernel, GemmKernel, VarlenKKernel
from ..kernels.kernel import KernelConfig
from ..kernels.moe.family import MegaMoeKernel
from ..kernels.moe.halves.family import EP_KERNELS
from ..kernels.moe.unfused.family import STAGES, stage_configs
from ..kernels.registry import find_kernel
from ..options.option import leave_out, numbers
from ..presets import preset as find_preset
from ..problem import ProblemError, integer_between
from .estimate import LONG_SECONDS, SHORTER, Estimate, physical_memory
from .options import SimulateOptions, takes
from .tables import FAILED, config_table, problem_table

DEFAULT_RANKS, MOST_LAUNCHES = 2, 1000
STAGE_NAMES = tuple(stage.name for stage in STAGES)
EP_NAMES = tuple(kernel.name for kernel in EP_KERNELS)
SIMULATED = (MegaMoeKernel.name, GemmKernel.name, GatherGemmKernel.name, VarlenKKernel.name, *STAGE_NAMES, *EP_NAMES)


@takes(SimulateOptions)
def simulate(given: SimulateOptions) -> None:
    """Compile the kernel, run its PTX on simulated ranks and compare y with the reference.

    With a stage of the unfused layer as --kernel all stages run, one launch after another; with one of the two expert-parallel kernels
    both run, with drawn activations between them.

    Exit code 0: equal, no finding.  1: a mismatch or a race finding.  2: bad input, a fault or a deadlock.
    """
    console = Console()
    if find_kernel(given.kernel).name not in SIMULATED:
        raise ProblemError("kernel", given.kernel, f"one that this command simulates: {', '.join(SIMULATED)}")
    if given.launches is not None:
        integer_between("--launches", given.launches, 1, MOST_LAUNCHES, f"between 1 and {MOST_LAUNCHES}")
    if not (simulate_layer if given.of_layer else simulate_gemm)(console, given):
        raise typer.Exit(FAILED)


def simulate_gemm(console: Console, given: SimulateOptions) -> bool:
    """Simulates a GEMM; returns whether everything passed.  Raises `ProblemError` and `SimError`."""
    leave_out(given, ("mask", "skew"), f"--kernel {given.kernel}")
    from .simulations import SEEDS, rows_of, run_gemm

    problem = given.other(sum(numbers("tokens", given.tokens, 0)), given.sms).problem
    integer_between("seed", given.seed, *SEEDS, "between -2^63 and 2^64 - 1")
    counts = rows_of(problem, given.tokens)
    config = given.other(sum(counts), given.sms)
    estimate = Estimate.of_gemm(config, sum(counts), given.num_launches)
    estimate.require_memory(physical_memory(), ("--fields", given.fields), ("tokens", given.tokens))
    estimate.require_yes(given.yes)
    return run_gemm(console, config, counts, given)


def simulate_layer(console: Console, given: SimulateOptions) -> bool:
    """Simulates the layer, its stages or its halves; returns whether all passed.  Raises `ProblemError` and `SimError`."""
    if given.kernel in EP_NAMES:
        leave_out(given, ("clamp", "activation", "biases", "weigh_results"), f"--kernel {given.kernel}")
    preset_ranks = DEFAULT_RANKS if given.preset is None else find_preset(given.preset).num_ranks
    ranks = preset_ranks if given.ranks is None else given.ranks
    counts = given.tokens_of(ranks)
    problem = replace(given, ranks=ranks).problem(max(1, *counts))
    from ..cases import check_draw

    names = EP_NAMES if given.kernel in EP_NAMES else (MegaMoeKernel.name,)
    configs = [given.config(problem, max(counts), given.sms, name) for name in names]
    launches = [rotate(counts, launch) for launch in range(given.num_launches)]
    for number, tokens in enumerate(launches):
        check_draw(problem, tokens, given.seed + number, given.mask)
    announce(console, configs[0], Estimate.of(configs[0], counts, given.num_launches, given.exact), given)
    from .simulations import run_ep, run_layer

    if given.kernel in EP_NAMES:
        return run_ep(console, configs, launches, given)
    return run_layer(console, stage_configs(configs[0]) if given.kernel in STAGE_NAMES else configs, launches, given)


def announce(console: Console, config: KernelConfig, estimate: Estimate, given: SimulateOptions) -> None:
    """Prints what will run and an estimate.  Raises `ProblemError` for what exceeds the memory or the race detector's capacity."""
    if not given.no_race:
        require_agents(config)
    p = config.problem
    estimate.require_memory(physical_memory(), ("num_experts", p.num_experts), ("tokens", p.max_tokens_per_rank))
    console.print(problem_table(config.problem), config_table(config), sep="\n")
    console.print(f"A rough estimate: {estimate} after compiling.", soft_wrap=True)
    if estimate.seconds > LONG_SECONDS:
        console.print(Text(f"That is long: {SHORTER}.", style="yellow"), soft_wrap=True)
    estimate.require_yes(given.yes)


def require_agents(config: KernelConfig) -> None:
    """Raises `ProblemError` for more warps and engines (mbarrier units, tensor cores) than the race detector can distinguish."""
    from ..sim.clock import MAX_AGENTS, agents_needed
    from ..sim.geometry import Geometry

    ranks = config.problem.num_ranks
    engines = config.num_sms * ranks * (bool(config.smem and config.smem.barriers) + (config.tmem is not None))
    needed = engines + agents_needed([Geometry((config.num_sms, 1, 1), (config.num_threads, 1, 1))] * ranks)
    if needed > MAX_AGENTS:
        counted = f"{needed:,} warps and engines on {ranks} ranks, the race detector tells {MAX_AGENTS:,} apart"
        raise ProblemError("num_sms", config.num_sms, f"less, or given with --no-race: {counted}")


def rotate(counts: list[int], by: int) -> list[int]:
    """The counts moved `by` ranks on, so that each launch gives a rank another number of tokens."""
    by %= len(counts)
    return counts[by:] + counts[:by]
