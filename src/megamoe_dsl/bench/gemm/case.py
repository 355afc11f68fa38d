"""Data of a GEMM with its reference: exact, where every sum is, or normal numbers quantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...integer import as_integer
from ...kernels.gemm.problem import CONTIGUOUS, DENSE, MASKED, PACKED, ROW_BLOCK, SCALE_BLOCK, GemmProblem
from ...problem import ProblemError
from ...quant import quantize_e4m3_f32, quantize_weight_e4m3
from ...reference.promoted import Accumulate, promoted_matmul
from ...runtime.gemm_tensors import OUTPUT_DTYPES, GemmTensors

UNTOUCHED = 7.0
"""What D holds before a launch."""


@dataclass(frozen=True)
class GemmCase:
    """Operands, and which rows of A belong to which group: `spans` (group, first row, rows); rows of no group stay untouched."""

    problem: GemmProblem
    tensors: GemmTensors
    spans: tuple[tuple[int, int, int], ...]

    def reference(self, accumulate: Accumulate = torch.float64, k_blocks: int = 0) -> torch.Tensor:
        """D, of the result's type and shape, from what D holds now; partial sums as `promoted_matmul` forms them, of so many K blocks at a
        time, whose sums are then added, or of all."""
        p, t = self.problem, self.tensors
        step = k_blocks or p.k_blocks
        a, a_sf = t.a.flatten(0, -2), t.a_sf.flatten(0, -2)
        b, b_sf = (x if p.has_groups else x[None] for x in (t.b, t.b_sf))
        d = t.d.flatten(0, -2).clone()
        padding = p.scale_rows * 128 - p.n
        for group, first, rows in self.spans:
            w = torch.cat([b[group].view(torch.uint8), b.new_zeros(padding, p.k).view(torch.uint8)]).view(torch.float8_e4m3fn)
            part = slice(first, first + rows)
            found = torch.zeros(rows, p.n)
            for block in range(0, p.k_blocks, step):
                k, scales = slice(block * SCALE_BLOCK, (block + step) * SCALE_BLOCK), slice(block, block + step)
                own = a[part, k], a_sf[part, scales].contiguous(), w[:, k].contiguous(), b_sf[group][:, scales].contiguous()
                found += promoted_matmul(*own, accumulate)[:, : p.n]
            d[part] = (found + d[part] if p.accumulate else found).to(d.dtype)
        return d.view(t.d.shape)


def gemm_case(problem: GemmProblem, counts: Sequence[int], seed: int = 0, *, exact: bool = True, capacity: int = 0) -> GemmCase:
    """Operands drawn for `counts` rows of each group (one count of a dense problem).

    exact     small integers with powers of two as scales: every sum is exact
    capacity  rows of each group of a masked problem; by default the highest count rounded up to a multiple of 4

    Raises `ProblemError` for a list of another length or a bad count.
    """
    if len(counts) != problem.num_groups:
        raise ProblemError("len(rows)", len(counts), f"num_groups = {problem.num_groups}")
    for count in counts:
        if (number := as_integer(count)) is None or number < 0:
            raise ProblemError("rows", count, "a number of rows, 0 or more")
    capacity = max(capacity, -(-max(counts) // 4) * 4)
    rows, spans, groups = place_rows(problem, counts, capacity)
    generator = torch.Generator().manual_seed(seed)
    draw = draw_exact if exact else draw_normal
    a, a_sf, b, b_sf = draw(problem, rows, generator)
    lead = (problem.num_groups, capacity) if problem.kind == MASKED else (rows,)
    if not problem.has_groups:
        b, b_sf = b[0], b_sf[0]
    d = torch.full((*lead, problem.n), UNTOUCHED, dtype=OUTPUT_DTYPES[problem.output])
    tensors = GemmTensors(a.view(*lead, problem.k), a_sf.view(*lead, problem.k_blocks), b.contiguous(), b_sf, d, groups)
    return GemmCase(problem, tensors, spans)


def place_rows(
    problem: GemmProblem, counts: Sequence[int], capacity: int
) -> tuple[int, tuple[tuple[int, int, int], ...], torch.Tensor | None]:
    """Rows of A, which of them belong to which group, and what says so to the kernel."""
    if problem.kind == DENSE:
        return counts[0], ((0, 0, counts[0]),), None
    if problem.kind == MASKED:
        spans = tuple((group, group * capacity, count) for group, count in enumerate(counts))
        return capacity * len(counts), spans, torch.tensor(counts, dtype=torch.int32)
    spans_found, index, first = [], [], 0
    for group, count in enumerate(counts):
        taken = count if problem.kind == PACKED else -(-count // ROW_BLOCK) * ROW_BLOCK
        spans_found.append((group, first, taken))
        index += [group] * (taken // ROW_BLOCK)
        first += taken
    if problem.kind == CONTIGUOUS:
        # A block more that belongs to none.
        return first + ROW_BLOCK, tuple(spans_found), torch.tensor([*index, -1], dtype=torch.int32)
    ends = [start + taken for _, start, taken in spans_found]
    return first, tuple(spans_found), torch.tensor(ends, dtype=torch.int32)


def draw_exact(problem: GemmProblem, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """A, its scales, B, its scales: every product, sum and result is a number that FP32 has."""
    p = problem
    a, b = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((rows, p.k), (p.num_groups, p.n, p.k)))
    shapes = (rows, p.k_blocks), (p.num_groups, p.scale_rows, p.k_blocks)
    a_sf, b_sf = (torch.exp2(torch.randint(-2, 3, shape, generator=generator)) for shape in shapes)
    return a.to(torch.float8_e4m3fn), a_sf, b.to(torch.float8_e4m3fn), b_sf


def draw_normal(problem: GemmProblem, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """The same of normal numbers, quantised."""
    p = problem
    a, a_sf = quantize_e4m3_f32(torch.randn(rows, p.k, generator=generator))
    b, b_sf = quantize_weight_e4m3(torch.randn(p.num_groups, p.scale_rows * 128, p.k, generator=generator))
    return a, a_sf, b[:, : p.n], b_sf
