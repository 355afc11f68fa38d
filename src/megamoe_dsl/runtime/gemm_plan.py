"""A GEMM on tensors of some layouts: looked at once, then launched for all that are like them."""

from __future__ import annotations

from typing import Any

import torch

from ..blocks.gemm.problem import GemmProblem
from .device_gemm import check_current, device_gemm
from .gemm_tensors import GemmTensors


class GemmPlan:
    """The kernel of all calls whose tensors have the dtypes, shapes, contiguity and device of these.  Raises `ProblemError`."""

    def __init__(self, problem: GemmProblem, tensors: GemmTensors) -> None:
        self._problem, self._device, self._index = problem, tensors.a.device, tensors.a.get_device()
        self._shape, self._dtype = tensors.d.shape, tensors.d.dtype
        self._unscaled = None if problem.formats.scaled else (tensors.a_sf, tensors.b_sf)
        self._kernel = device_gemm(problem, self._device).checked(tensors)

    def __call__(
        self,
        out: torch.Tensor | None,
        a: torch.Tensor,
        a_sf: torch.Tensor | None,
        b: torch.Tensor,
        b_sf: torch.Tensor | None,
        groups: torch.Tensor | None,
        factors: torch.Tensor | None,
    ) -> torch.Tensor:
        """`out`, or a new D.  Raises `ProblemError` for the wrong device or alignment."""
        if self._index >= 0 and self._index != torch._C._cuda_getDevice():
            check_current(self._device)
        d = torch.empty(self._shape, dtype=self._dtype, device=self._device) if out is None else out
        if self._kernel is not None:
            scales: Any = self._unscaled or (a_sf, b_sf)
            tensors = GemmTensors(a, scales[0], b, scales[1], d, groups, factors)
            tensors.check_addresses(self._problem)
            self._kernel(tensors)
        return d
