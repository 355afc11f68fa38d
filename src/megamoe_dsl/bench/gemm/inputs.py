"""Operands of a point on a GPU, and D of some of its rows in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...arch import SM90
from ...blocks.gemm.problem import MASKED, GemmProblem
from ...kernel_cases.gemm import place_rows
from ...quant import dequantize, no_scales, quantize
from ...runtime.gemm_scales import scales_by_column
from ...runtime.gemm_tensors import OUTPUT_DTYPES, GemmTensors
from ...runtime.gemm_weights import gemm_weights
from .point import GemmPoint

SEED = 0
SAMPLED_GROUPS, SAMPLED_ROWS = 6, 32
TOLERANCE = 4e-3
"""Relative error of D in BF16: half of it is the rounding of the output."""


def draw_matrices(problem: GemmProblem, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """B of normal numbers, quantized, and its scales, as checkpoints have them; those of every group differ in size."""
    sizes = (0.5 + group / problem.num_groups for group in range(problem.num_groups))
    drawn = [quantize(torch.randn(problem.n, problem.k, device=device) * size, problem.formats.weights) for size in sizes]
    b, b_sf = (torch.stack(one) for one in zip(*drawn, strict=True))
    return b, b_sf


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
        a, a_sf = quantize(torch.randn(rows, p.k, device=device), p.formats.activations)
        b, b_sf = draw_matrices(p, device)
        scales = scales_by_column(a_sf) if p.formats.scaled else a_sf
        samples = []
        for group, first, count in [one for one in spans if one[2]][:: max(1, len(spans) // SAMPLED_GROUPS)]:
            at = first + torch.randperm(count, device=device)[:SAMPLED_ROWS]
            own = a.view(torch.uint8)[at].view(a.dtype)
            samples.append((at, dequantize(own, a_sf[at].contiguous()) @ dequantize(b[group], b_sf[group]).T))
        lead = (p.num_groups, capacity) if p.kind == MASKED else (rows,)
        if p.kind == MASKED:
            a = a.view(*lead, p.k)
            shape = (*lead, p.k_blocks), (capacity, 1, scales.stride(1))
            scales = scales.as_strided(*shape) if p.formats.scaled else no_scales(a)
        if p.decodes:
            b, b_sf = gemm_weights(b, b_sf, SM90)
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
