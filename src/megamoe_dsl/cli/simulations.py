"""What `megamoe simulate` runs and compares with the reference: GEMMs, a layer, its stages, and its two halves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from rich.console import Console

from ..blocks.gemm.base_config import BaseGemmConfig
from ..blocks.gemm.problem import GatherGemmProblem, GemmProblem, VarlenKProblem
from ..cases import Case, random_case
from ..kernel_cases.gather import GatherCase, gather_case
from ..kernel_cases.gemm import GemmCase, gemm_case
from ..kernel_cases.gradients import GradientCase, VarlenKCase, gradient_case, varlen_k_case
from ..kernel_cases.halves import combined, draw_activations, linear1_rows
from ..kernels.kernel import KernelConfig
from ..kernels.moe.halves.config import EpConfig
from ..options.option import numbers
from ..problem import Problem, ProblemError
from ..reference import Accumulate
from ..runtime.buffers import Inputs
from ..runtime.ep.simulated import SimulatedEp
from ..runtime.simulated import SimulatedMoE, compare, simulate_gemm
from ..sim import Report
from .options import SimulateOptions
from .tables import compiled, conclude, config_table, counting, problem_table, ruled, steps, verdict

SEEDS = -(1 << 63), (1 << 64) - 1  # The least and the greatest that a generator of torch takes.
EQUAL, BOUNDED = "every element equals the reference bit for bit", "every element is within the error bound"


def rows_of(problem: GemmProblem, text: str) -> list[int]:
    """Rows of each group, as in 130,0,64; a single number stands for every group.  Raises `ProblemError`."""
    rows = numbers("tokens", text, 0)
    return rows * problem.num_groups if len(rows) == 1 else rows


def case_of(config: BaseGemmConfig, counts: Sequence[int], seed: int, *, exact: bool) -> GemmCase | GatherCase | VarlenKCase | GradientCase:
    """Data.  Raises `ProblemError` for rows that do not fit."""
    if isinstance(config.problem, VarlenKProblem):
        return varlen_k_case(config.problem, counts, seed, exact=exact, arch=config.arch)
    if isinstance(config.problem, GatherGemmProblem) and config.problem.gradient:
        return gradient_case(config.problem, counts, seed, exact=exact)
    if isinstance(config.problem, GatherGemmProblem):
        return gather_case(config.problem, counts, seed, exact=exact, arch=config.arch)
    return gemm_case(config.problem, counts, seed, exact=exact, arch=config.arch)


def run_gemm(console: Console, config: BaseGemmConfig, counts: Sequence[int], given: SimulateOptions) -> bool:
    """Simulates the launches and prints tables; returns whether everything passed.  Raises `ProblemError` and `SimError`."""
    case = case_of(config, counts, given.seed, exact=given.exact)
    with console.status("making the reference"):
        ends = case.compared(exact=given.exact, k_blocks=config.most_k_blocks)
    console.print(problem_table(config.problem), config_table(config), sep="\n")
    (artifact,) = compiled(console, [config])
    launches = 1 if config.problem.accumulate else given.num_launches
    with counting(console) as show:
        report = simulate_gemm(artifact, case.tensors, launches=launches, seed=given.seed, race=not given.no_race, progress=show)
    rows, wrong = ",".join(map(str, counts)), 0
    for name, (d, low, high) in ends.items():
        others = d.numel() - int(((low <= d) & (d <= high)).sum())
        row = (rows, f"{d.numel():,}", f"{d.numel() - others:,}", verdict(others))
        console.print(ruled(f"{name} against the reference", ("rows", "elements", "right", "verdict"), [row]))
        wrong += others
    known = all(torch.equal(low, high) for _, low, high in ends.values())
    return conclude(console, not wrong, [report], EQUAL if known else BOUNDED, race=not given.no_race)


def draw(console: Console, problem: Problem, launches: Sequence[Sequence[int]], given: SimulateOptions) -> list[Case]:
    """The data of every launch, of these tokens on each rank."""
    with steps(console) as show:
        options = dict[str, Any](mask=given.mask, skew=given.skew, exact=given.exact, progress=show)
        return [random_case(problem, counts, given.seed + launch, **options) for launch, counts in enumerate(launches)]


def inputs_of(case: Case) -> list[Inputs]:
    return [Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]


def run_layer(console: Console, configs: Sequence[KernelConfig], launches: Sequence[Sequence[int]], given: SimulateOptions) -> bool:
    """Simulates launches of a layer's kernels on one set of buffers; returns whether everything passed.  Raises `SimError`."""
    artifacts = compiled(console, configs)
    cases, rows, reports, right = draw(console, configs[0].problem, launches, given), list[tuple[object, ...]](), list[Report](), True
    with counting(console) as show:
        moe = SimulatedMoE(artifacts, cases[0].weights, seed=given.seed, race=not given.no_race, progress=show)
        for number, case in enumerate(cases, 1):
            if number > 1:
                moe.load_weights(case.weights)
            y, report = moe(inputs_of(case))
            reports.append(report)
            for one in compare(case, y):
                right &= one.passed
                elements = f"{one.elements:,}", f"{one.elements - one.unequal:,}", f"{one.max_error:.3g}"
                rows.append(
                    (number, one.rank, one.tokens, *elements, "exact" if given.exact else f"{one.worst:.1%}", verdict(one.violations))
                )
    headings = ("launch", "rank", "tokens", "elements", "equal", "max error", "of bound", "verdict")
    console.print(ruled("y against the reference", headings, rows))
    return conclude(console, right, reports, EQUAL if given.exact else BOUNDED, race=not given.no_race)


Compared = tuple[int, str, int, int, int, int]
"""Launch, kernel, rank, rows, their elements, and elements whose bits differ from the reference."""


def run_ep(console: Console, configs: Sequence[EpConfig], launches: Sequence[Sequence[int]], given: SimulateOptions) -> bool:
    """Simulates launches of dispatch and of combine (`configs`) with random activations between them; returns whether everything passed.
    Raises `SimError`, and `ProblemError` for --random with a recipe whose sums have no specified bits."""
    problem = configs[0].problem
    cases = draw(console, problem, launches, given)
    if given.random and not problem.formats.sums_known:
        raise ProblemError("--random", True, f"left out with --recipe {problem.recipe}: the bits of its sums are not specified")
    dispatch, combine = compiled(console, configs)
    accumulate: Accumulate = torch.float64 if given.exact else "hopper"
    with counting(console) as show:
        ep = SimulatedEp(dispatch, combine, cases[0].weights, seed=given.seed, race=not given.no_race, progress=show)
        launched = [one for number, case in enumerate(cases, 1) for one in launch(ep, case, number, accumulate)]
    headings = ("launch", "kernel", "rank", "rows", "elements", "equal", "verdict")
    parts = [one for ranks, _ in launched for one in ranks]
    rows = [(*part, f"{elements:,}", f"{elements - unequal:,}", verdict(unequal)) for *part, elements, unequal in parts]
    console.print(ruled("Rows of Linear1, and y, against the reference", headings, rows))
    for ranks, report in launched:
        number, kernel, *_ = ranks[0]
        console.print(f"Launch {number}: copies of {kernel} moved {report.crossed:,} bytes between ranks.")
    return conclude(console, not any(unequal for *_, unequal in parts), [report for _, report in launched], EQUAL, race=not given.no_race)


def compared(number: int, kernel: str, rank: int, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> Compared:
    """Compares pairs of BF16 tensors [rows, channels]."""
    unequal = sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in zip(found, wanted, strict=True))
    return number, kernel, rank, sum(map(len, wanted)), sum(one.numel() for one in wanted), unequal


def launch(ep: SimulatedEp, case: Case, number: int, accumulate: Accumulate) -> Iterator[tuple[list[Compared], Report]]:
    """Runs dispatch and combine on one case; yields for each the comparison of every rank and the report."""
    for buffers, weights in zip(ep.ranks, case.weights, strict=True):
        buffers.weights = weights
    outs, report = ep.dispatch(inputs_of(case))
    ranks = range(case.problem.num_ranks)
    found = [[out[place] for place in buffers.expert_slices()] for out, buffers in zip(outs, ep.ranks, strict=True)]
    yield [compared(number, "dispatch", rank, found[rank], linear1_rows(case, rank, accumulate)) for rank in ranks], report
    acts = [draw_activations(case, rank) for rank in ranks]
    ys, report = ep.combine(acts, [len(idx) for idx in case.topk_idx])
    wanted = combined(case, acts, accumulate)
    yield [compared(number, "combine", rank, [ys[rank]], [wanted[rank]]) for rank in ranks], report
