"""Tensors of a GEMM: what they must be, and the arguments of a launch that they make."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..kernels.gemm.problem import BF16, CONTIGUOUS, MASKED, ROW_BLOCK, GemmProblem
from ..kernels.gemm.smem_plan import SCALE_STEP
from ..problem import ProblemError
from .buffers import check_device, check_tensor

OUTPUT_DTYPES = {BF16: torch.bfloat16, "f32": torch.float32}
TMA_ALIGNMENT = 16


def scales_by_column(a_sf: torch.Tensor) -> torch.Tensor:
    """Scales of A as the kernel reads them: the same values with rows next to one another in memory.

    a_sf, float32 [m, k / 128], of any strides; the result has strides (1, m rounded up to a multiple of 4).  What has them is returned as
    it is.
    """
    rows, blocks = a_sf.shape
    if has_kernel_strides(a_sf):
        return a_sf
    padded = -(-max(rows, 1) // SCALE_STEP) * SCALE_STEP
    columns = torch.empty(blocks, padded, dtype=a_sf.dtype, device=a_sf.device)
    columns[:, :rows] = a_sf.T
    return columns[:, :rows].T


def has_kernel_strides(a_sf: torch.Tensor) -> bool:
    """Whether TMA takes the scales as they are."""
    rows, blocks = a_sf.shape
    ld = a_sf.stride(1)
    return (rows <= 1 or a_sf.stride(0) == 1) and ld % SCALE_STEP == 0 and ld >= rows and (blocks == 1 or ld > 0)


@dataclass(frozen=True)
class GemmTensors:
    """Operands and result of one launch.

    a       float8_e4m3fn [m, k]; of a masked problem [num_groups, capacity, k], as d
    a_sf    float32 [m, k / 128], or [num_groups, capacity, k / 128]; copied where its strides are not those of `scales_by_column`
    b       float8_e4m3fn [n, k], of a problem with groups [num_groups, n, k]
    b_sf    float32 [ceil(n / 128), k / 128], with groups [num_groups, ...]
    d       bfloat16 or float32 [m, n]
    groups  int32, see `GemmArguments`; None of a dense problem
    """

    a: torch.Tensor
    a_sf: torch.Tensor
    b: torch.Tensor
    b_sf: torch.Tensor
    d: torch.Tensor
    groups: torch.Tensor | None = None

    def check(self, problem: GemmProblem) -> None:
        """Raises `ProblemError` that names the tensor and what is wrong with it.  Reads none."""
        lead = self.rows_shape(problem)
        check_tensor("a", self.a, torch.float8_e4m3fn, (*lead, problem.k))
        problem.check_rows(self.rows, "a.shape[0]")
        if self.a_sf.dtype != torch.float32:
            raise ProblemError("a_sf.dtype", self.a_sf.dtype, "torch.float32")
        if tuple(self.a_sf.shape) != (*lead, problem.k_blocks):
            raise ProblemError("a_sf.shape", tuple(self.a_sf.shape), str((*lead, problem.k_blocks)))
        groups = (problem.num_groups,) if problem.has_groups else ()
        check_tensor("b", self.b, torch.float8_e4m3fn, (*groups, problem.n, problem.k))
        check_tensor("b_sf", self.b_sf, torch.float32, (*groups, problem.scale_rows, problem.k_blocks))
        check_tensor("out", self.d, OUTPUT_DTYPES[problem.output], (*lead, problem.n))
        if problem.has_groups:
            assert self.groups is not None
            entries = self.rows // ROW_BLOCK if problem.kind == CONTIGUOUS else problem.num_groups
            check_tensor("groups", self.groups, torch.int32, (entries,))
        for name in ("a", "a_sf", "b", "b_sf", "d", "groups"):
            tensor = getattr(self, name)
            if tensor is not None:
                check_device("out" if name == "d" else name, tensor, self.a.device)
        for name in ("a", "b", "d"):
            if getattr(self, name).data_ptr() % TMA_ALIGNMENT:
                raise ProblemError(f"{name}.data_ptr()", getattr(self, name).data_ptr(), f"a multiple of {TMA_ALIGNMENT}")

    def rows_shape(self, problem: GemmProblem) -> tuple[int, ...]:
        """Shape of the rows of A and D.  Raises `ProblemError` for an A of another number of dimensions."""
        dims = 3 if problem.kind == MASKED else 2
        if self.a.dim() != dims:
            raise ProblemError("a.shape", tuple(self.a.shape), "[num_groups, capacity, k]" if dims == 3 else "[m, k]")
        lead = tuple(self.a.shape[:-1])
        if dims == 3 and lead[0] != problem.num_groups:
            raise ProblemError("a.shape[0]", lead[0], f"num_groups = {problem.num_groups}")
        if dims == 3 and lead[1] % SCALE_STEP:
            raise ProblemError("a.shape[1]", lead[1], f"a multiple of {SCALE_STEP}: TMA fetches the scales of so many rows at least")
        return lead

    @property
    def rows(self) -> int:
        """M."""
        return self.a.numel() // self.a.shape[-1]

    def scales(self) -> torch.Tensor:
        """Those of A as the kernel reads them."""
        return scales_by_column(self.a_sf.flatten(0, -2) if self.a_sf.dim() == 3 else self.a_sf)

    def arguments(self, scales: torch.Tensor, counter: int) -> dict[str, int]:
        """Of a launch, by name; `scales` as `scales` gives them, `counter` an address or 0."""
        return {
            "a": self.a.data_ptr(),
            "a_sf": scales.data_ptr(),
            "b": self.b.data_ptr(),
            "b_sf": self.b_sf.data_ptr(),
            "d": self.d.data_ptr(),
            "groups": 0 if self.groups is None else self.groups.data_ptr(),
            "counter": counter,
            "m": self.rows,
            "a_sf_ld": scales.stride(1),
        }
