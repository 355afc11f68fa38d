"""Tensors of a GEMM over the rows of experts: what they must be, and the arguments of a launch that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..blocks.gemm.problem import DOT_COLUMNS, ROW_BLOCK, SORTED_BLOCKED, GatherGemmProblem, GemmProblem
from ..problem import ProblemError
from ..quant.weights import TORCH_DTYPES, stored_row
from ..recipe import F32
from .buffers import check_aligned, check_device, check_tensor
from .gemm_scales import TMA_ALIGNMENT, by_block, check_scales, check_words_aligned, has_kernel_strides, kernel_scales, token_scales
from .gemm_tensors import UNPACKED_ALIGNMENT, LaunchTensors, check_bias, given_where


class GradientTensors(NamedTuple):
    """Of a GEMM whose sums are gradients of activated gate and up, beside its `d`, bfloat16 [rows, 2 n].

    gate_up      bfloat16 [rows, 2 n], as the forward pass has stored them
    row_weights  float32 [m], the top-k weight of each row
    weighted     bfloat16 [rows, n], the activated product times it
    dots         float32 [ceil(n / 128), m], products of sums and activated product over 128 columns
    """

    gate_up: torch.Tensor
    row_weights: torch.Tensor
    weighted: torch.Tensor
    dots: torch.Tensor

    def check(self, problem: GatherGemmProblem, rows: int, m: int) -> None:
        n, device = problem.n, self.gate_up.device
        check_tensor("gate_up", self.gate_up, torch.bfloat16, (rows, 2 * n), device, TMA_ALIGNMENT)
        check_tensor("row_weights", self.row_weights, torch.float32, (m,), device)
        check_tensor("weighted", self.weighted, torch.bfloat16, (rows, n), device, TMA_ALIGNMENT)
        check_tensor("dots", self.dots, torch.float32, (-(-n // DOT_COLUMNS), m), device)


@dataclass(frozen=True)
class GatherTensors(LaunchTensors):
    """Those of a GEMM over the rows of experts.

    Elements are float8_e4m3fn, bfloat16, or two E2M1 a uint8; what a problem does not have is None.

    a        [tokens, k]; of sorted rows [rows of the source layout, k]
    a_sf     float32 [rows of a, k / 128], contiguous where rows are gathered, else copied unless its strides are those of
             `scales_by_column`; a byte each [rows of a, k / 32], or / 16; of bfloat16 `no_scales`, b_sf too
    b, b_sf  [num_groups, n, k], with scales as of `GemmTensors`, or `gate_up_words` of them
    ends     int32 [num_groups], where each expert's rows end if they are packed, whatever the layouts are
    d        bfloat16 [rows of the result layout, n], of gate and up activated [.., n / 2]; rows of no expert are left alone
    sources  int32 [m], the row of a of each row that is gathered
    d_sf     of gate and up, float32 [rows of d, n / 256] with strides as `scales_by_column` makes them, or bytes, contiguous
    preactivations  bfloat16 [rows of d, n], gate and up
    factors  float32 [num_groups], what sums are multiplied with
    up_factors, hidden_factors  float32 [num_groups], what sums of up are multiplied with, and the factor of D, of gate and up
    bias     float32 or bfloat16 [num_groups, n]
    trace    int64, the stamps of a traced kernel, which `inspect.spans.spans_of` reads
    """

    a: torch.Tensor
    a_sf: torch.Tensor
    b: torch.Tensor
    b_sf: torch.Tensor
    ends: torch.Tensor
    d: torch.Tensor
    sources: torch.Tensor | None = None
    d_sf: torch.Tensor | None = None
    preactivations: torch.Tensor | None = None
    factors: torch.Tensor | None = None
    up_factors: torch.Tensor | None = None
    hidden_factors: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    trace: torch.Tensor | None = None
    gradient: GradientTensors | None = None

    def check(self, problem: GemmProblem) -> None:
        """Raises `ProblemError` as of any launch, and for a problem that is not of the rows of experts."""
        p, device = problem, self.a.device
        if not isinstance(p, GatherGemmProblem):
            raise ProblemError("problem", type(p).__name__, "a GatherGemmProblem")
        for name, tensor in (("a", self.a), ("out", self.d)):
            if tensor.dim() != 2:
                raise ProblemError(f"{name}.shape", tuple(tensor.shape), "[rows, k]" if name == "a" else "[rows, n]")
        dtype, row = stored_row(p.formats.activations, p.k)
        check_tensor("a", self.a, dtype, (len(self.a), row))
        p.check_rows(len(self.a), "a.shape[0]")
        dtype, row = stored_row(p.formats.weights, p.k)
        check_tensor("b", self.b, dtype, (p.num_groups, *(p.b_shape if p.transposed_b else (p.n, row))))
        if p.gate_up and p.formats.scales_in_mma and self.b_sf.dtype != torch.int32:
            raise ProblemError("b_sf.dtype", self.b_sf.dtype, "torch.int32, as gate_up_words makes them")
        check_scales(p, (len(self.a),), self.a_sf, self.b_sf, words=False)
        check_tensor("ends", self.ends, torch.int32, (p.num_groups,))
        dtype, row = stored_row(p.hidden, p.d_columns) if p.gate_up else (torch.bfloat16, p.d_columns)
        check_tensor("out", self.d, dtype, (len(self.d), row))
        self._check_d_sf(p)
        stored = torch.bfloat16, (len(self.d), p.n), device, TMA_ALIGNMENT
        given = "a bfloat16 tensor", "None where gate and up are not stored"
        given_where(p.preactivations, "preactivations", self.preactivations, *given, *stored)
        none = f"None with {p.recipe}" + (f" and output = {p.output}" if p.has_factors else "")
        for name, wanted in {"factors": p.has_factors, "up_factors": p.hidden.factor, "hidden_factors": p.hidden.factor}.items():
            given_where(wanted, name, getattr(self, name), "a float32 tensor", none, torch.float32, (p.num_groups,), device)
        check_bias(p, self.bias, device)
        for name, layout, rows in (("a", p.source, len(self.a)), ("out", p.result, len(self.d))):
            if layout == SORTED_BLOCKED and rows % ROW_BLOCK:
                raise ProblemError(f"{name}.shape[0]", rows, f"a multiple of {ROW_BLOCK} where rows are {layout}")
        self._check_sources(p)
        if (p.gradient != "") != (self.gradient is not None):
            raise ProblemError("gradient", self.gradient, "GradientTensors of a problem with a gradient, else None")
        if self.gradient is not None:
            self.gradient.check(p, len(self.d), self.rows)
        for name in ("a_sf", "b", "b_sf", "ends", "d"):
            check_device("out" if name == "d" else name, getattr(self, name), device)
        check_words_aligned("b_sf", self.b_sf)
        for name in ("a", "b", "d"):
            check_aligned("out" if name == "d" else name, getattr(self, name), UNPACKED_ALIGNMENT if name == "b" else TMA_ALIGNMENT)

    def _check_d_sf(self, problem: GatherGemmProblem) -> None:
        scale, d_sf = problem.hidden.scale, self.d_sf
        dtype = TORCH_DTYPES[scale]
        none = "None of BF16" if problem.gate_up else "None without gate_up"
        d_sf = given_where(bool(problem.gate_up and scale), "out_sf", d_sf, f"a {dtype} tensor of gate and up", none)
        if d_sf is None:
            return
        shape = (len(self.d), problem.d_columns // problem.hidden.channels)
        check_tensor("out_sf", d_sf, dtype, shape, self.a.device, strided=scale == F32)
        if scale == F32 and not has_kernel_strides(d_sf):
            raise ProblemError("out_sf.stride()", d_sf.stride(), "those of scales_by_column")

    def _check_sources(self, problem: GatherGemmProblem) -> None:
        gathered, none = "an int32 tensor where rows are gathered", f"None where rows are {problem.source}"
        sources = given_where(problem.gathers, "sources", self.sources, gathered, none)
        if sources is None:
            return
        check_tensor("sources", sources, torch.int32, (sources.numel(),), self.a.device)
        problem.check_rows(sources.numel(), "sources.shape[0]")
        if sources.numel() and not len(self.a):
            raise ProblemError("a.shape[0]", 0, "1 or more where rows are gathered from it")
        if not self.a_sf.is_contiguous():
            raise ProblemError("a_sf.stride()", self.a_sf.stride(), "contiguous where rows are gathered")
        check_aligned("a_sf", self.a_sf, self.a_sf.element_size() * problem.scales_at_once)

    @property
    def rows(self) -> int:
        return min(len(self.a) if self.sources is None else self.sources.numel(), len(self.d))

    def operands(self) -> dict[str, torch.Tensor]:
        in_place = self.sources is not None or self.a_sf.dtype != torch.float32
        scales = {"a_sf": self.a_sf if in_place else token_scales(self.a_sf), "b_sf": kernel_scales(self.b_sf)}
        some = self.some("a", "b", "sources", "factors", "up_factors", "hidden_factors", "bias")
        if self.gradient is not None:
            some |= {"gate_up": self.gradient.gate_up, "row_weights": self.gradient.row_weights}
        return {"groups": self.ends, **scales, **some}

    def results(self) -> dict[str, torch.Tensor]:
        found = self.some("d", "preactivations", "trace")
        if self.d_sf is not None:
            found["d_sf"] = by_block(self.d_sf)
        if self.gradient is not None:
            found |= {"weighted": self.gradient.weighted, "dots": self.gradient.dots}
        return found

    def numbers(self, operands: dict[str, torch.Tensor]) -> dict[str, int]:
        a_ld = operands["a_sf"].stride(0) if self.sources is None else self.a_sf.shape[1]
        d_ld = 0 if self.d_sf is None else self.d_sf.stride(1)
        return {"d_sf": 0, "sources": 0, "a_rows": len(self.a), "d_rows": len(self.d), "a_sf_ld": a_ld, "d_sf_ld": d_ld}
