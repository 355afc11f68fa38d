"""Matrices B of a point: normal numbers, quantized or not; those of every group differ in size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..arch import SM90
from ..blocks.gemm.problem import GemmProblem
from ..quant import dequantize_e2m1, dequantize_weight_e4m3, no_scales, quantize_e2m1, quantize_weight_e4m3
from ..runtime.gemm_weights import gemm_weights


def draw_group(problem: GemmProblem, group: int, rows: int, device: str) -> torch.Tensor:
    return torch.randn(rows, problem.k, device=device) * (0.5 + group / problem.num_groups)


@dataclass(frozen=True)
class Matrices:
    """E4M3 [groups, n, k] with one FP32 scale per 128 x 128."""

    b: torch.Tensor
    b_sf: torch.Tensor

    @classmethod
    def draw(cls, p: GemmProblem, device: str) -> Matrices:
        b = torch.empty(p.num_groups, p.n, p.k, dtype=torch.float8_e4m3fn, device=device)
        b_sf = torch.empty(p.num_groups, p.scale_rows, p.k_blocks, device=device)
        for group in range(p.num_groups):
            drawn, b_sf[group] = quantize_weight_e4m3(draw_group(p, group, p.scale_rows * 128, device))
            b[group].copy_(drawn[: p.n])
        return cls(b, b_sf)

    def dense(self, group: int) -> torch.Tensor:
        n, k = self.b.shape[1:]
        w = torch.zeros(self.b_sf.shape[1] * 128, k, dtype=torch.uint8, device=self.b.device)
        w[:n] = self.b[group].view(torch.uint8)
        return dequantize_weight_e4m3(w.view(torch.float8_e4m3fn), self.b_sf[group])[:n]

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As a kernel reads them."""
        return self.b, self.b_sf


@dataclass(frozen=True)
class UnscaledMatrices:
    """BF16 matrices [groups, n, k] without scales."""

    b: torch.Tensor

    @classmethod
    def draw(cls, p: GemmProblem, device: str) -> UnscaledMatrices:
        b = torch.empty(p.num_groups, p.n, p.k, dtype=torch.bfloat16, device=device)
        for group in range(p.num_groups):
            b[group] = draw_group(p, group, p.n, device)
        return cls(b)

    def dense(self, group: int) -> torch.Tensor:
        return self.b[group].double()

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As a kernel reads them."""
        return self.b, no_scales(self.b)


@dataclass(frozen=True)
class PackedMatrices:
    """E2M1 [groups, n, k / 2] with UE8M0 scales of 32."""

    b: torch.Tensor
    b_sf: torch.Tensor

    @classmethod
    def draw(cls, p: GemmProblem, device: str) -> PackedMatrices:
        drawn = [quantize_e2m1(draw_group(p, group, p.n, device)) for group in range(p.num_groups)]
        return cls(*(torch.stack(one) for one in zip(*drawn, strict=True)))

    def dense(self, group: int) -> torch.Tensor:
        return dequantize_e2m1(self.b[group], self.b_sf[group]).double()

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As a kernel of SM90 reads them."""
        return gemm_weights(self.b, self.b_sf, SM90)
