"""`megamoe simulate --kernel dispatch_grouped_gemm`, or `grouped_gemm_combine`: both on simulated ranks, compared with the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console

from ..cases import Case
from ..kernel_cases.halves import combined, draw_activations, linear1_rows
from ..kernels.moe.halves.config import EpConfig
from ..problem import ProblemError
from ..reference import Accumulate
from ..runtime.buffers import Inputs
from ..runtime.ep.simulated import SimulatedEp
from ..sim import Report
from .simulator_output import compiled, counting, print_outcome, print_reports, verdict
from .tables import ruled


@dataclass(frozen=True)
class HalfComparison:
    """What a launch made on a rank: rows of Linear1, or tokens of y; elements, and how many have other bits than the reference's."""

    kernel: str
    launch: int
    rank: int
    rows: int
    elements: int
    unequal: int


def compare(kernel: str, launch: int, rank: int, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> HalfComparison:
    """BF16 tensors [rows, channels] in pairs."""
    unequal = sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in zip(found, wanted, strict=True))
    return HalfComparison(kernel, launch, rank, sum(map(len, wanted)), sum(one.numel() for one in wanted), unequal)


def run_ep(console: Console, configs: Sequence[EpConfig], cases: Sequence[Case], seed: int, *, exact: bool, race: bool) -> bool:
    """A launch of dispatch and one of combine, on drawn activations, for each case on the same buffers, and their tables and verdict on
    the console; whether everything passed.

    configs  of dispatch and of combine
    exact    whether the data is: else the reference adds as tensor cores do

    Raises `SimError` for a fault or a deadlock, and `ProblemError` for data that is not exact where the reference cannot have the bits.
    """
    if not exact and not configs[0].problem.formats.sums_known:
        raise ProblemError("--random", True, f"left out with --recipe {configs[0].problem.recipe}: the bits of its sums are not specified")
    artifacts = compiled(console, configs)
    accumulate: Accumulate = torch.float64 if exact else "hopper"
    with counting(console) as show:
        ep = SimulatedEp(artifacts[0], artifacts[1], cases[0].weights, seed=seed, race=race, progress=show)
        launched = [one for number, case in enumerate(cases, 1) for one in launch(ep, case, number, accumulate)]
    return print_launches(console, launched, race=race)


def launch(ep: SimulatedEp, case: Case, number: int, accumulate: Accumulate) -> Iterator[tuple[list[HalfComparison], Report]]:
    """Both kernels on one case: what each made of every rank."""
    for buffers, weights in zip(ep.ranks, case.weights, strict=True):
        buffers.weights = weights
    outs, report = ep.dispatch([Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)])
    ranks = range(case.problem.num_ranks)
    found = [[out[place] for place in buffers.expert_slices()] for out, buffers in zip(outs, ep.ranks, strict=True)]
    yield [compare("dispatch", number, rank, found[rank], linear1_rows(case, rank, accumulate)) for rank in ranks], report
    acts = [draw_activations(case, rank) for rank in ranks]
    ys, report = ep.combine(acts, [len(idx) for idx in case.topk_idx])
    wanted = combined(case, acts, accumulate)
    yield [compare("combine", number, rank, [ys[rank]], [wanted[rank]]) for rank in ranks], report


def print_launches(console: Console, launched: Sequence[tuple[list[HalfComparison], Report]], *, race: bool) -> bool:
    """The comparison table, the bytes between ranks, and the verdict; whether everything passed."""
    table = ruled("Rows of Linear1, and y, against the reference", "launch", "kernel", "rank", "rows", "elements", "equal", "verdict")
    halves = [one for ranks, _ in launched for one in ranks]
    for one in halves:
        equal = f"{one.elements - one.unequal:,}"
        table.add_row(str(one.launch), one.kernel, str(one.rank), str(one.rows), f"{one.elements:,}", equal, verdict(one.unequal))
    console.print(table)
    for ranks, report in launched:
        console.print(f"Launch {ranks[0].launch}: copies of {ranks[0].kernel} moved {report.crossed:,} bytes between ranks.")
    reports = [report for _, report in launched]
    print_reports(console, reports, race=race)
    passed = not any(one.unequal for one in halves) and not any(report.findings for report in reports)
    print_outcome(console, passed, "every element equals the reference bit for bit", race=race)
    return passed
