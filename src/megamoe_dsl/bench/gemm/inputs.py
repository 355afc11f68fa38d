"""Operands of a point on a GPU, and D of some of its rows in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...blocks.gemm.problem import MASKED, GemmProblem
from ...kernel_cases.gemm import place_rows
from ...kernel_cases.matrices import Matrices, PackedMatrices, UnscaledMatrices
from ...quant import dequantize_e4m3_f32, no_scales, quantize_e4m3_f32
from ...runtime.gemm_scales import scales_by_column
from ...runtime.gemm_tensors import OUTPUT_DTYPES, GemmTensors
from .point import GemmPoint

SEED = 0
SAMPLED_GROUPS, SAMPLED_ROWS = 6, 32
TOLERANCE = 4e-3
"""Relative error of D in BF16: half of it is the rounding of the output."""


def draw_operands(
    problem: GemmProblem, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Matrices | PackedMatrices | UnscaledMatrices]:
    """A of these float32 rows, its scales or `no_scales`, and matrices B, in the problem's formats."""
    device = str(rows.device)
    if not problem.formats.scaled:
        return rows.bfloat16(), no_scales(rows), UnscaledMatrices.draw(problem, device)
    a, a_sf = quantize_e4m3_f32(rows)
    return a, a_sf, PackedMatrices.draw(problem, device) if problem.decodes else Matrices.draw(problem, device)


@dataclass(frozen=True)
class PointInputs:
    """Tensors of a point, with the scales of A as the kernel reads them, and (rows of D, what they should be) of some groups."""

    tensors: GemmTensors
    samples: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    @classmethod
    def draw(cls, point: GemmPoint, device: str = "cuda") -> PointInputs:
        """Normal numbers, quantized; weights of every group differ in size."""
        p = point.problem
        torch.manual_seed(SEED)
        capacity = max(max(point.counts), 4)
        rows, spans, groups = place_rows(p, point.counts, capacity)
        a, a_sf, weights = draw_operands(p, torch.randn(rows, p.k, device=device))
        scales = scales_by_column(a_sf) if p.formats.scaled else a_sf
        samples = []
        for group, first, count in [one for one in spans if one[2]][:: max(1, len(spans) // SAMPLED_GROUPS)]:
            at = first + torch.randperm(count, device=device)[:SAMPLED_ROWS]
            own = a.view(torch.uint8)[at].view(a.dtype)
            values = dequantize_e4m3_f32(own, a_sf[at].contiguous()) if p.formats.scaled else own.double()
            samples.append((at, values @ weights.dense(group).T))
        lead = (p.num_groups, capacity) if p.kind == MASKED else (rows,)
        if p.kind == MASKED:
            a = a.view(*lead, p.k)
            shape = (*lead, p.k_blocks), (capacity, 1, scales.stride(1))
            scales = scales.as_strided(*shape) if p.formats.scaled else no_scales(a)
        b, b_sf = weights.operands()
        if not p.has_groups:
            b, b_sf = b[0], b_sf[0]
        d = torch.empty(*lead, p.n, dtype=OUTPUT_DTYPES[p.output], device=device)
        return cls(GemmTensors(a, scales, b, b_sf, d, None if groups is None else groups.to(device)), tuple(samples))

    def copies(self, count: int) -> list[PointInputs]:
        """The same `count` times, each with weights in memory of their own."""
        return [self, *(replace(self, tensors=replace(self.tensors, b=self.tensors.b.clone())) for _ in range(count - 1))]

    def error(self, d: torch.Tensor) -> float:
        """The largest relative error of a sampled group in D, by norm."""
        rows = d.flatten(0, -2) if d.dim() == 3 else d
        return max(float((rows[at].double() - want).norm() / want.norm()) for at, want in self.samples)
