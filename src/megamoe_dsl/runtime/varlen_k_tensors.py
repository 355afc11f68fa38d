"""Tensors of a GEMM whose K are the rows of groups: what they must be, and the arguments of a launch that they make."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..blocks.gemm.problem import GemmProblem, VarlenKProblem
from ..problem import ProblemError
from ..quant import no_scales
from .buffers import check_tensor
from .gemm_scales import TMA_ALIGNMENT, KernelScales
from .gemm_tensors import OUTPUT_DTYPES


@dataclass(frozen=True)
class VarlenKTensors:
    """Operands and result of one launch.

    gathered  bfloat16 [tokens, columns of the gathered side]
    sorted    bfloat16 [m or more, columns of the other side], rows sorted by group; those behind the last group's may hold anything
    ends      int32 [num_groups], where each group's rows end
    sources   int32 [m], the row of `gathered` of each row
    d         bfloat16 or float32 [num_groups, n, k]
    """

    gathered: torch.Tensor
    sorted: torch.Tensor
    ends: torch.Tensor
    sources: torch.Tensor
    d: torch.Tensor

    def check(self, problem: GemmProblem) -> None:
        """Raises `ProblemError` that names the tensor and what is wrong with it, and for a problem of another kind.  Reads none."""
        if not isinstance(problem, VarlenKProblem):
            raise ProblemError("problem", type(problem).__name__, "a VarlenKProblem")
        p, device = problem, self.d.device
        check_tensor("gathered", self.gathered, torch.bfloat16, (len(self.gathered), p.gathered_columns), device, TMA_ALIGNMENT)
        check_tensor("sorted", self.sorted, torch.bfloat16, (len(self.sorted), p.tile_columns), device, TMA_ALIGNMENT)
        check_tensor("ends", self.ends, torch.int32, (p.num_groups,), device)
        check_tensor("sources", self.sources, torch.int32, (self.sources.numel(),), device)
        check_tensor("out", self.d, OUTPUT_DTYPES[p.output], (p.num_groups, p.n, p.k), device, TMA_ALIGNMENT)
        p.check_rows(self.rows, "sources.shape[0]")
        if self.rows > len(self.sorted):
            raise ProblemError("sources.shape[0]", self.rows, f"at most {len(self.sorted)}, the rows of sorted")
        if self.rows and not len(self.gathered):
            raise ProblemError("gathered.shape[0]", 0, "1 or more where rows are gathered from it")

    @property
    def rows(self) -> int:
        """An upper bound of the rows of all groups together."""
        return self.sources.numel()

    def scales(self) -> KernelScales:
        """None, as BF16 has them."""
        return KernelScales(no_scales(self.gathered), no_scales(self.sorted))

    def operands(self, scales: KernelScales) -> dict[str, torch.Tensor]:
        """What a launch reads, by name."""
        return {"a": self.gathered, "b": self.sorted, "groups": self.ends, "sources": self.sources}

    def results(self) -> dict[str, torch.Tensor]:
        """What a launch writes, by name."""
        return {"d": self.d}

    def arguments(self, scales: KernelScales, counter: int) -> dict[str, int]:
        """The arguments of a launch by name; `counter` is an address or 0."""
        addresses = {name: tensor.data_ptr() for name, tensor in {**self.operands(scales), **self.results()}.items()}
        d_rows = self.d.shape[0] * self.d.shape[1]
        numbers = {"counter": counter, "m": self.rows, "a_rows": len(self.gathered), "d_rows": d_rows}
        return {**dict.fromkeys(("a_sf", "b_sf", "d_sf", "a_sf_ld", "d_sf_ld"), 0), **addresses, **numbers}
