"""What `megamoe simulate` runs and compares with the reference: GEMMs, a layer, its stages, its two halves, and its inputs stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from rich.console import Console

from ..blocks.gemm.base_config import BaseGemmConfig
from ..blocks.gemm.problem import GatherGemmProblem, GemmProblem, VarlenKProblem
from ..cases import Case, random_case, random_routing
from ..cases.generators import normal
from ..kernel_cases.gather import GatherCase, gather_case
from ..kernel_cases.gemm import GemmCase, gemm_case
from ..kernel_cases.gradients import GradientCase, VarlenKCase, gradient_case, varlen_k_case
from ..kernel_cases.halves import combined, draw_activations, linear1_rows
from ..kernels.kernel import KernelConfig
from ..kernels.moe.halves.config import EpConfig
from ..kernels.moe.inputs_config import PreDispatchConfig
from ..options.option import numbers
from ..problem import Problem, ProblemError
from ..quant import input_layout, quantize
from ..reference import Accumulate
from ..runtime.buffers import Inputs
from ..runtime.ep.simulated import SimulatedEp
from ..runtime.simulated import SimulatedMoE, compare, memory_of, simulate_gemm, simulated_launch
from ..sim import GlobalMemory, Report, Simulator
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


Compared = tuple[Any, ...]
"""A row of a comparison: cells that identify it, elements compared, and elements whose bits differ from the reference."""


def compared(part: Compared, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> Compared:
    """Compares pairs of BF16 tensors [rows, channels]; `part` and the number of rows identify the row of the table."""
    unequal = sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in zip(found, wanted, strict=True))
    return *part, sum(map(len, wanted)), sum(one.numel() for one in wanted), unequal


def print_compared(console: Console, title: str, headings: tuple[str, ...], parts: Sequence[Compared]) -> bool:
    """The comparison table; whether everything is equal."""
    rows = [(*part, f"{elements:,}", f"{elements - unequal:,}", verdict(unequal)) for *part, elements, unequal in parts]
    console.print(ruled(title, (*headings, "equal", "verdict"), rows))
    return not any(unequal for *_, unequal in parts)


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
    headings = ("launch", "kernel", "rank", "rows", "elements")
    parts = [one for ranks, _ in launched for one in ranks]
    right = print_compared(console, "Rows of Linear1, and y, against the reference", headings, parts)
    for ranks, report in launched:
        number, kernel, *_ = ranks[0]
        console.print(f"Launch {number}: copies of {kernel} moved {report.crossed:,} bytes between ranks.")
    return conclude(console, right, [report for _, report in launched], EQUAL, race=not given.no_race)


def launch(ep: SimulatedEp, case: Case, number: int, accumulate: Accumulate) -> Iterator[tuple[list[Compared], Report]]:
    """Runs dispatch and combine on one case; yields for each the comparison of every rank and the report."""
    for buffers, weights in zip(ep.ranks, case.weights, strict=True):
        buffers.weights = weights
    outs, report = ep.dispatch(inputs_of(case))
    ranks = range(case.problem.num_ranks)
    found = [[out[place] for place in buffers.expert_slices()] for out, buffers in zip(outs, ep.ranks, strict=True)]
    yield [compared((number, "dispatch", rank), found[rank], linear1_rows(case, rank, accumulate)) for rank in ranks], report
    acts = [draw_activations(case, rank) for rank in ranks]
    ys, report = ep.combine(acts, [len(idx) for idx in case.topk_idx])
    wanted = combined(case, acts, accumulate)
    yield [compared((number, "combine", rank), [ys[rank]], [wanted[rank]]) for rank in ranks], report


FIELDS = ("x", "x_sf", "topk_idx", "topk_weights")
Tokens = dict[str, torch.Tensor]  # By argument: x in BF16, topk_idx and topk_weights of a rank.
UNTOUCHED = 0x5A  # what a symmetric buffer is full of before the launch


def run_inputs(console: Console, config: PreDispatchConfig, counts: Sequence[int], given: SimulateOptions) -> bool:
    """Simulates a launch on every rank, padded to capacity; returns whether it passed.  Raises `ProblemError` and `SimError`."""
    (artifact,) = compiled(console, [config])
    inputs = draw_inputs(config, counts, given)
    with counting(console) as show:
        buffers = [torch.full((config.symmetric.size,), UNTOUCHED, dtype=torch.uint8) for _ in inputs]
        memory, launches = GlobalMemory(), []
        for rank, (one, sym) in enumerate(zip(inputs, buffers, strict=True)):
            memory_of(one, {"sym": sym}, rank=rank, memory=memory)
            places = {"sym": sym.data_ptr(), **{name: tensor.data_ptr() for name, tensor in one.items()}}
            arguments = {**places, "num_tokens": len(one["x"]), "padded_tokens": config.problem.max_tokens_per_rank}
            launches.append(simulated_launch(artifact, artifact.kernel.arguments(config).pack(**arguments), rank))
        report = Simulator(artifact.ptx, memory, seed=given.seed, race=not given.no_race, progress=show).run(launches)
    fields = [field for rank, (one, sym) in enumerate(zip(inputs, buffers, strict=True)) for field in compare_rank(config, rank, one, sym)]
    right = print_compared(console, "The symmetric buffer against quant", ("rank", "tokens", "field", "bytes"), fields)
    return conclude(console, right, [report], "every byte of the symmetric buffer is as quant makes it", race=not given.no_race)


def draw_inputs(config: PreDispatchConfig, counts: Sequence[int], given: SimulateOptions) -> list[Tokens]:
    """Routed tokens of every rank: normal numbers, each block of channels with a magnitude of its own."""
    problem, generator = config.problem, torch.Generator().manual_seed(given.seed)
    routing = random_routing(problem, counts, generator, given.mask, given.skew)
    _, channels = input_layout(problem)
    drawn = ((normal((len(idx), problem.hidden), channels, generator), idx, torch.rand(idx.shape, generator=generator)) for idx in routing)
    return [{"x": x.bfloat16(), "topk_idx": idx, "topk_weights": weights} for x, idx, weights in drawn]


def expected_buffer(config: PreDispatchConfig, inputs: Tokens) -> torch.Tensor:
    """uint8: the symmetric buffer that `quant` makes of a rank's inputs; slots without a token are masked, all else is untouched."""
    problem, count = config.problem, len(inputs["x"])
    region = config.symmetric
    sym = torch.full((region.size,), UNTOUCHED, dtype=torch.uint8)
    codes, sf = quantize(inputs["x"], problem.formats.activations)
    region.view(sym, "topk_idx").fill_(-1)
    region.view(sym, "topk_weights").fill_(0.0)
    for name, tensor in zip(FIELDS, (codes, sf, inputs["topk_idx"], inputs["topk_weights"]), strict=True):
        region.view(sym, name)[:count].view(torch.uint8).copy_(tensor.contiguous().view(torch.uint8))
    return sym


def compare_rank(config: PreDispatchConfig, rank: int, inputs: Tokens, sym: torch.Tensor) -> list[Compared]:
    """Every field of a rank's symmetric buffer, and the rest of it, against `expected_buffer`."""
    region, tokens = config.symmetric, len(inputs["x"])
    differs = sym != expected_buffer(config, inputs)
    parts: list[Compared] = []
    for name in FIELDS:
        field = region.view(differs.view(torch.uint8), name).view(torch.uint8)  # a view: what is counted is then cleared
        parts.append((rank, tokens, name, field.numel(), int(field.sum())))
        field.zero_()
    rest = region.size - sum(elements for *_, elements, _ in parts)
    return [*parts, (rank, tokens, "all else", rest, int(differs.sum()))]
