"""`megamoe simulate --kernel gemm`, or `gather_gemm`: a GEMM in the simulator, compared with the reference element for element."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ..blocks.gemm.base_config import BaseGemmConfig
from ..blocks.gemm.problem import GatherGemmProblem, GemmProblem
from ..kernel_cases.gather import GatherCase, gather_case
from ..kernel_cases.gemm import GemmCase, gemm_case
from ..options.option import numbers
from ..problem import integer_between
from ..runtime.simulated_gemm import simulate_gemm
from .config_options import KernelOptions
from .estimate import Estimate, physical_memory
from .simulator_output import compiled, counting, print_outcome, print_reports, verdict
from .tables import config_table, problem_table, ruled

SEEDS = -(1 << 63), (1 << 64) - 1
"""The least and the greatest that a generator of torch takes."""


def simulate_given(
    console: Console, given: KernelOptions, tokens: str, sms: int, seed: int, *, exact: bool, launches: int, race: bool, yes: bool
) -> bool:
    """What the command's options say; as `run_gemm`.  Raises `ProblemError` for what takes long or does not fit, too."""
    config = given.other(sum(numbers("tokens", tokens, 0)), sms)
    integer_between("seed", seed, *SEEDS, "between -2^63 and 2^64 - 1")
    estimate = Estimate.of_gemm(config, sum(rows_of(config.problem, tokens)), launches)
    estimate.require_memory(physical_memory(), ("--fields", given.fields), ("tokens", tokens))
    estimate.require_yes(yes)
    return run_gemm(console, config, rows_of(config.problem, tokens), seed, exact=exact, launches=launches, race=race)


def rows_of(problem: GemmProblem, text: str) -> list[int]:
    """Rows of each group, as in 130,0,64; a single number stands for every group.  Raises `ProblemError`."""
    rows = numbers("tokens", text, 0)
    return rows * problem.num_groups if len(rows) == 1 else rows


def case_of(config: BaseGemmConfig, counts: Sequence[int], seed: int, *, exact: bool) -> GemmCase | GatherCase:
    """Data.  Raises `ProblemError` for rows that do not fit."""
    if isinstance(config.problem, GatherGemmProblem):
        return gather_case(config.problem, counts, seed, exact=exact, arch=config.arch)
    return gemm_case(config.problem, counts, seed, exact=exact, arch=config.arch)


def run_gemm(console: Console, config: BaseGemmConfig, counts: Sequence[int], seed: int, *, exact: bool, launches: int, race: bool) -> bool:
    """So many launches, and their tables and verdict on the console; whether everything passed.

    Raises `ProblemError` for rows that do not fit, and `SimError` for a fault or a deadlock.
    """
    if config.problem.accumulate:
        launches = 1
    case = case_of(config, counts, seed, exact=exact)
    with console.status("making the reference"):
        compared = case.compared(exact=exact, k_blocks=config.most_k_blocks)
    console.print(problem_table(config.problem), config_table(config), sep="\n")
    (artifact,) = compiled(console, [config])
    with counting(console) as show:
        report = simulate_gemm(artifact, case.tensors, launches=launches, seed=seed, race=race, progress=show)
    rows, wrong = ",".join(map(str, counts)), 0
    for name, (d, low, high) in compared.items():
        others = d.numel() - int(((low <= d) & (d <= high)).sum())
        table = ruled(f"{name} against the reference", "rows", "elements", "right", "verdict")
        table.add_row(rows, f"{d.numel():,}", f"{d.numel() - others:,}", verdict(others))
        console.print(table)
        wrong += others
    print_reports(console, [report], race=race)
    passed = not wrong and not report.findings
    known = all(low is high for _, low, high in compared.values())
    proved = "every element equals the reference bit for bit" if known else "every element is within the error bound"
    print_outcome(console, passed, proved, race=race)
    return passed
