"""Data of a GEMM over the rows of experts, with its reference: that of the packed GEMM of the same rows.

A layer routes every token to `topk` experts, so that its GEMMs have tokens x topk rows: gathered from the matrix of tokens, sorted and
packed, or sorted with every expert at a multiple of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from ..arch import SM90, Arch
from ..blocks.gemm.problem import GATHERED, INTERLEAVED, PACKED, ROW_BLOCK, SORTED_BLOCKED, UP_FIRST, GatherGemmProblem, GemmProblem
from ..layouts.arith import align
from ..problem import ProblemError
from ..quant import quantize
from ..quant.weights import TORCH_DTYPES, stored_row
from ..reference import activate
from ..runtime.cpu_experts import gate_then_up
from ..runtime.gemm_scales import gate_up_words, scales_by_column
from ..runtime.gemm_tensors import GemmTensors
from .gemm import UNTOUCHED, Compared, GemmCase, drawing_of, gemm_case

NAN_BYTE = 255
ROWS_PER_TOKEN = 3
"""Rows of all experts that are gathered, for each token."""


@dataclass(frozen=True)
class GatherCase:
    """`packed` is the GEMM of the same rows, sorted and packed; `placed` has the row of D for each of them."""

    problem: GatherGemmProblem
    tensors: GemmTensors
    packed: GemmCase
    placed: torch.Tensor

    def with_rows(self, written: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """A copy of an output with these rows in the places of D; other rows stay."""
        found = written.clone()
        as_integers(found)[self.placed] = as_integers(rows)
        return found

    def hidden_factors(self) -> torch.Tensor | None:
        """Factors of activated gate and up of each row, float32; None where they have none."""
        factors = self.tensors.hidden_factors
        return None if factors is None else torch.cat([factors[group].expand(rows) for group, _, rows in self.packed.spans])

    def compared(self, *, exact: bool, k_blocks: int = 0) -> dict[str, Compared]:
        """Results of a launch by name, with their lowest and highest allowed values: D; with `gate_up` also its scales, and gate and up if
        they are stored.  Rows of no expert must stay unchanged.

        Raises `ProblemError` for `gate_up` of normal numbers that a tensor core scales: how it rounds their sums is not known.
        """
        t, p = self.tensors, self.problem
        if not p.gate_up:
            low, high = (self.with_rows(t.d, rows) for rows in self.packed.ends(exact=exact))  # a CTA has all of K
            return {"D": (t.d, low, high)}
        if not (exact or self.packed.sums_known):
            raise ProblemError("data", "normal", f"exact with gate_up of {p.recipe}: how its sums are rounded is not known")
        gate_up = self.packed.reference(torch.float64 if exact else "hopper")
        halves = gate_then_up(gate_up.float(), p.gate_up)
        d, d_sf = quantize(activate(p, halves, torch.ones(len(halves))), p.hidden, self.hidden_factors())
        found = {"D": (t.d, d)}
        if t.d_sf is not None:
            found["scales of D"] = t.d_sf, d_sf
        if t.preactivations is not None:
            found["gate and up"] = t.preactivations, gate_up
        expected = {name: as_integers(self.with_rows(written, rows)) for name, (written, rows) in found.items()}
        return {name: (as_integers(written), expected[name], expected[name]) for name, (written, _) in found.items()}


def sorted_rows(counts: Sequence[int], block: int = 1) -> tuple[torch.Tensor, int]:
    """Indices of `counts` rows of each expert if each expert begins a new block, and the number of rows with padding."""
    ends = list(accumulate((align(count, block) for count in counts), initial=0))
    return torch.cat([torch.arange(first, first + count) for first, count in zip(ends, counts, strict=False)]), ends[-1]


def as_integers(values: torch.Tensor) -> torch.Tensor:
    """The same bits as integers: some builds of torch cannot index 8-bit floats, and none compares them."""
    return values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[values.element_size()])


def rows_of(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return as_integers(values)[rows].view(values.dtype)


def gather_case(problem: GatherGemmProblem, counts: Sequence[int], seed: int = 0, *, exact: bool = True, arch: Arch = SM90) -> GatherCase:
    """Operands drawn for `counts` rows of each expert; `exact` and `arch` as of `gemm_case`.  Raises `ProblemError` as that does.

    Rows of a blocked A that belong to no expert are NaN.
    """
    p = problem
    of_rows = GemmProblem(p.n, p.k, PACKED, p.num_groups, recipe=p.recipe, transposed_b=p.transposed_b)
    packed = gemm_case(of_rows, counts, seed, exact=exact, arch=arch)
    t = packed.tensors
    assert t.groups is not None
    a, a_sf, sources = t.a, t.a_sf, None
    if problem.source == GATHERED:
        generator = torch.Generator().manual_seed(seed + 1)
        tokens = len(t.a) // ROWS_PER_TOKEN + 1
        sources = torch.randint(0, tokens, (len(t.a),), generator=generator, dtype=torch.int32)
        a, a_sf = drawing_of(of_rows, exact)(of_rows, tokens, generator)[:2]
        own: GemmTensors = replace(t, a=rows_of(a, sources), a_sf=rows_of(a_sf, sources))
        packed = replace(packed, tensors=own)
    if problem.source == SORTED_BLOCKED:
        placed, num_rows = sorted_rows(counts, ROW_BLOCK)
        a = torch.full((num_rows, t.a.shape[1] * t.a.element_size()), 0xFF, dtype=torch.uint8)
        a[placed] = t.a.view(torch.uint8)
        a, a_sf = a.view(t.a.dtype), torch.full((num_rows, t.a_sf.shape[1]), NAN_BYTE if t.a_sf.dtype == torch.uint8 else torch.nan)
        a_sf = a_sf.to(t.a_sf.dtype)
        as_integers(a_sf)[placed] = as_integers(t.a_sf)
    placed, num_rows = sorted_rows(counts, ROW_BLOCK if problem.result == SORTED_BLOCKED else 1)
    if not problem.gate_up:
        d = torch.full((num_rows, problem.n), UNTOUCHED).to(torch.bfloat16)
        return GatherCase(problem, GemmTensors(a, a_sf, t.b, t.b_sf, d, t.groups, t.factors, sources=sources), packed, placed)
    hidden, b_sf = problem.hidden, t.b_sf
    dtype, row = stored_row(hidden, problem.d_columns)
    d = torch.full((num_rows, row), UNTOUCHED).to(dtype)
    d_sf: torch.Tensor | None = None
    if hidden.scale is not None:
        scales = torch.full((num_rows, hidden.scales_of(problem.d_columns)), UNTOUCHED)
        d_sf = scales_by_column(scales) if problem.formats.promoted else scales.to(TORCH_DTYPES[hidden.scale])
    if problem.formats.scales_in_mma:
        b_sf = gate_up_words(b_sf, problem.gate_up)
    stored = torch.full((num_rows, problem.n), UNTOUCHED).to(torch.bfloat16) if problem.preactivations else None
    tensors = GemmTensors(a, a_sf, t.b, b_sf, d, t.groups, t.factors, None, sources, d_sf, stored)
    if t.factors is not None and hidden.factor:
        up = t.factors.flip(0) * 1.25
        of_columns: GemmTensors = replace(packed.tensors, factors=factors_of_columns(problem, t.factors, up))
        packed = replace(packed, tensors=of_columns)
        tensors = replace(tensors, up_factors=up, hidden_factors=hidden_factors(problem, seed))
    return GatherCase(problem, tensors, packed, placed)


def factors_of_columns(problem: GatherGemmProblem, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Factors of each expert and column of A x B, float32 [num_groups, n], from those of its gate and of its up."""
    if problem.gate_up == INTERLEAVED:
        return torch.stack([gate, up], dim=1).repeat(1, problem.n // 2)
    halves = (up, gate) if problem.gate_up == UP_FIRST else (gate, up)
    return torch.stack(halves, dim=1).repeat_interleave(problem.n // 2, dim=1)


def hidden_factors(problem: GatherGemmProblem, seed: int) -> torch.Tensor:
    """Factors of each expert, so far apart that scales of exact data are E4M3's normal numbers, its largest, subnormal ones, and zero."""
    drawn = torch.rand(problem.num_groups, generator=torch.Generator().manual_seed(seed + 2)) + 0.5
    return drawn * torch.exp2(torch.tensor([3.0, 9.0, -5.0, 20.0]))[torch.arange(problem.num_groups) % 4]
