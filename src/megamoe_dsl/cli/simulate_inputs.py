"""`megamoe simulate --kernel pre_dispatch`: the inputs stage on simulated ranks, compared with `quant` byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.text import Text

from ..artifact.artifact import Artifact
from ..artifact.compile import compile_kernel
from ..cases import random_routing
from ..cases.common import normal
from ..kernels.moe.layouts.symmetric import symmetric_buffer
from ..kernels.moe.pre_dispatch.config import PreDispatchConfig
from ..quant import MICRO_SCALING, input_layout, quantize_e4m3_f32
from ..recipe import UE8M0
from ..runtime.buffers import Bf16Inputs
from ..sim import GlobalMemory, Launch, Report, Simulator
from .simulator_output import counting, print_outcome, print_reports
from .tables import artifact_table, ruled

FIELDS = ("x", "x_sf", "topk_idx", "topk_weights")
UNTOUCHED = 0x5A  # what a symmetric buffer is full of before the launch


@dataclass(frozen=True)
class FieldComparison:
    """Bytes of one rank's symmetric buffer, in one field or outside of all FIELDS, and how many of them differ."""

    rank: int
    tokens: int
    field: str
    num_bytes: int
    unequal: int


def simulate_inputs(
    console: Console, config: PreDispatchConfig, counts: Sequence[int], seed: int, *, mask: float, skew: bool, race: bool
) -> bool:
    """One launch on every rank, and its tables and verdict on the console; whether everything passed.

    Raises `ProblemError` when an argument does not fit, and `SimError` for a fault or a deadlock.
    """
    problem = config.problem
    with console.status("compiling"):
        artifact = compile_kernel(config, line_info=True)  # findings and faults then name Python lines
    console.print(artifact_table(artifact))
    inputs = draw_inputs(config, counts, seed, mask=mask, skew=skew)
    with counting(console) as show:
        buffers = [torch.full((symmetric_buffer(problem, config.arch).size,), UNTOUCHED, dtype=torch.uint8) for _ in inputs]
        memory, launches = GlobalMemory(), []
        for rank, (one, sym) in enumerate(zip(inputs, buffers, strict=True)):
            launches.append(launch(artifact, rank, one, sym, memory))
        report = Simulator(artifact.ptx, memory, seed=seed, race=race, progress=show).run(launches)
    fields = [field for rank, (one, sym) in enumerate(zip(inputs, buffers, strict=True)) for field in compare_rank(config, rank, one, sym)]
    return print_fields(console, fields, report, race=race)


def draw_inputs(config: PreDispatchConfig, counts: Sequence[int], seed: int, *, mask: float, skew: bool) -> list[Bf16Inputs]:
    """Normal tokens of every rank, whose blocks have many magnitudes, and their routing."""
    problem, generator = config.problem, torch.Generator().manual_seed(seed)
    routing = random_routing(problem, counts, generator, mask, skew)
    _, channels = input_layout(problem)
    return [
        Bf16Inputs(normal((len(idx), problem.hidden), channels, generator).bfloat16(), idx, torch.rand(idx.shape, generator=generator))
        for idx in routing
    ]


def launch(artifact: Artifact, rank: int, inputs: Bf16Inputs, sym: torch.Tensor, memory: GlobalMemory) -> Launch:
    """A rank's launch into `sym`, padded to the buffer's capacity; all that it may touch is added to `memory`."""
    config = artifact.config
    memory.add(sym, name="sym", rank=rank)
    for name, tensor in vars(inputs).items():
        if tensor.numel():
            memory.add(tensor, name=name, rank=rank, read_only=True)
    pointers = {name: tensor.data_ptr() for name, tensor in vars(inputs).items()}
    counts = {"num_tokens": inputs.num_tokens, "padded_tokens": config.problem.max_tokens_per_rank}
    return Launch(
        grid=(config.num_sms, 1, 1),
        block=(config.num_threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        dynamic_smem=artifact.dynamic_smem,
        args=artifact.kernel.arguments(config).pack(sym=sym.data_ptr(), **pointers, **counts),
        rank=rank,
    )


def expected_buffer(config: PreDispatchConfig, inputs: Bf16Inputs) -> torch.Tensor:
    """uint8: the symmetric buffer that `quant` makes of a rank's inputs; slots without a token are masked, all else is untouched."""
    problem, count = config.problem, inputs.num_tokens
    region = symmetric_buffer(problem, config.arch)
    sym = torch.full((region.size,), UNTOUCHED, dtype=torch.uint8)
    activations = problem.formats.activations
    quantize = MICRO_SCALING[activations.element].quantize if activations.scale == UE8M0 else quantize_e4m3_f32
    codes, sf = quantize(inputs.x)
    region.view(sym, "topk_idx").fill_(-1)
    region.view(sym, "topk_weights").fill_(0.0)
    for name, tensor in zip(FIELDS, (codes, sf, inputs.topk_idx, inputs.topk_weights), strict=True):
        region.view(sym, name)[:count].view(torch.uint8).copy_(tensor.contiguous().view(torch.uint8))
    return sym


def compare_rank(config: PreDispatchConfig, rank: int, inputs: Bf16Inputs, sym: torch.Tensor) -> list[FieldComparison]:
    """Every field of a rank's symmetric buffer, and the rest of it, against `expected_buffer`."""
    region = symmetric_buffer(config.problem, config.arch)
    differs = sym != expected_buffer(config, inputs)
    parts = []
    for name in FIELDS:
        field = region.view(differs.view(torch.uint8), name).view(torch.uint8)  # a view: what is counted is then cleared
        parts.append(FieldComparison(rank, inputs.num_tokens, name, field.numel(), int(field.sum())))
        field.zero_()
    rest = region.size - sum(one.num_bytes for one in parts)
    return [*parts, FieldComparison(rank, inputs.num_tokens, "all else", rest, int(differs.sum()))]


def print_fields(console: Console, fields: Sequence[FieldComparison], report: Report, *, race: bool) -> bool:
    """The comparison table and the verdict; whether everything passed."""
    table = ruled("The symmetric buffer against quant", "rank", "tokens", "field", "bytes", "equal", "verdict")
    for one in fields:
        verdict = Text(f"{one.unequal:,} mismatches", style="bold red") if one.unequal else Text("pass", style="green")
        table.add_row(str(one.rank), str(one.tokens), one.field, f"{one.num_bytes:,}", f"{one.num_bytes - one.unequal:,}", verdict)
    console.print(table)
    print_reports(console, [report], race=race)
    passed = not any(one.unequal for one in fields) and not report.findings
    print_outcome(console, passed, "every byte of the symmetric buffer is as quant makes it", race=race)
    return passed
