"""Tensors of a GEMM over the rows of experts: what they must be, and the arguments of a launch that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ..blocks.gemm.config import GemmConfig
from ..blocks.gemm.problem import DOT_COLUMNS, ROW_BLOCK, SORTED_BLOCKED, GatherGemmProblem, GemmProblem
from ..blocks.gemm.sm100.config import Sm100GemmConfig
from ..layouts.records import trace_buffer
from ..problem import ProblemError
from ..quant.weights import TORCH_DTYPES, stored_row
from ..recipe import UE4M3, UE8M0
from .buffers import check_aligned, check_device, check_tensor
from .gemm_scales import (
    TMA_ALIGNMENT,
    KernelScales,
    check_bytes,
    check_no_scales,
    check_words_aligned,
    has_kernel_strides,
    scale_words,
    scales_by_column,
)
from .gemm_tensors import UNPACKED_ALIGNMENT, check_bias, given_where

OPTIONAL = ("sources", "factors", "up_factors", "hidden_factors", "bias")
"""What some launches read."""


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
        """Raises `ProblemError` that names the tensor and what is wrong with it."""
        n, device = problem.n, self.gate_up.device
        check_tensor("gate_up", self.gate_up, torch.bfloat16, (rows, 2 * n), device, TMA_ALIGNMENT)
        check_tensor("row_weights", self.row_weights, torch.float32, (m,), device)
        check_tensor("weighted", self.weighted, torch.bfloat16, (rows, n), device, TMA_ALIGNMENT)
        check_tensor("dots", self.dots, torch.float32, (-(-n // DOT_COLUMNS), m), device)


@dataclass(frozen=True)
class GatherTensors:
    """Operands and result of one launch.

    a        float8_e4m3fn or bfloat16 [tokens, k], E2M1 uint8 [tokens, k / 2]; of sorted rows [rows of the source layout, ..]
    a_sf     float32 [tokens, k / 128], contiguous; of sorted rows likewise, copied where its strides are not those of `scales_by_column`.
             UE8M0 uint8 or float8_e8m0fnu [rows of a, k / 32], UE4M3 float8_e4m3fn [rows of a, k / 16], contiguous.  Of bfloat16
             `no_scales`; b_sf too
    b        float8_e4m3fn or bfloat16 [num_groups, n, k], E2M1 uint8 [num_groups, n, k / 2]
    b_sf     float32 [num_groups, ceil(n / 128), k / 128], UE8M0 [num_groups, n, k / 32] or `scale_words` of them; of gate and up
             `gate_up_words`
    ends     int32 [num_groups], where each expert's rows end if they are packed, whatever the layouts are
    d        bfloat16 [rows of the result layout, n], of gate and up float8_e4m3fn or bfloat16 [.., n / 2] or E2M1 uint8 [.., n / 4]; rows
             of no expert are left alone
    sources  int32 [m], the row of a of each row, where they are gathered; None else
    d_sf     float32 [rows of d, n / 256], with strides as `scales_by_column` makes them, of gate and up; UE8M0 uint8 [rows of d, n / 64],
             contiguous; UE4M3 float8_e4m3fn [rows of d, n / 32], likewise; None else
    preactivations  bfloat16 [rows of d, n], where gate and up are stored; None else
    factors  float32 [num_groups], what sums are multiplied with, in number formats with such a factor; None else
    up_factors, hidden_factors  float32 [num_groups], where gate and up become such a format: what sums of up are multiplied with, those of
             gate with `factors`, and the factor of D; None else
    bias     float32 or bfloat16 [num_groups, n], as the problem says, of one with biases; None else
    trace    int64, the stamps of a traced kernel (`with_stamps`); None of any other
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
        """Raises `ProblemError` that names the tensor and what is wrong with it, and for a problem that gathers no rows.  Reads none."""
        p = problem
        if not isinstance(p, GatherGemmProblem):
            raise ProblemError("problem", type(p).__name__, "a GatherGemmProblem")
        for name, tensor in (("a", self.a), ("out", self.d)):
            if tensor.dim() != 2:
                raise ProblemError(f"{name}.shape", tuple(tensor.shape), "[rows, k]" if name == "a" else "[rows, n]")
        acts, weights = p.formats.activations, p.formats.weights
        dtype, row = stored_row(acts, p.k)
        check_tensor("a", self.a, dtype, (len(self.a), row))
        problem.check_rows(len(self.a), "a.shape[0]")
        dtype, row = stored_row(weights, p.k)
        check_tensor("b", self.b, dtype, (p.num_groups, *(p.b_shape if p.transposed_b else (p.n, row))))
        self._check_scales(p)
        check_tensor("ends", self.ends, torch.int32, (p.num_groups,))
        check_tensor("out", self.d, *self._results(p))
        self._check_d_sf(p)
        self._check_preactivations(p)
        self._check_factors(p)
        check_bias(p, self.bias, self.a.device)
        for name, layout, rows in (("a", p.source, len(self.a)), ("out", p.result, len(self.d))):
            if layout == SORTED_BLOCKED and rows % ROW_BLOCK:
                raise ProblemError(f"{name}.shape[0]", rows, f"a multiple of {ROW_BLOCK} where rows are {layout}")
        self._check_sources(p)
        if (p.gradient != "") != (self.gradient is not None):
            raise ProblemError("gradient", self.gradient, "GradientTensors of a problem with a gradient, else None")
        if self.gradient is not None:
            self.gradient.check(p, len(self.d), self.rows)
        for name in ("a_sf", "b", "b_sf", "ends", "d"):
            check_device("out" if name == "d" else name, getattr(self, name), self.a.device)
        check_words_aligned("b_sf", self.b_sf)
        for name in ("a", "b", "d"):
            check_aligned("out" if name == "d" else name, getattr(self, name), UNPACKED_ALIGNMENT if name == "b" else TMA_ALIGNMENT)

    def _results(self, problem: GatherGemmProblem) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape of D."""
        if not problem.gate_up:
            return torch.bfloat16, (len(self.d), problem.d_columns)
        dtype, row = stored_row(problem.hidden, problem.d_columns)
        return dtype, (len(self.d), row)

    def _check_scales(self, problem: GatherGemmProblem) -> None:
        rows, groups = len(self.a), problem.num_groups
        if not problem.formats.scaled:
            check_no_scales(problem.recipe, "a_sf", self.a_sf, (rows,))
            check_no_scales(problem.recipe, "b_sf", self.b_sf, (groups, problem.n))
            return
        if problem.formats.scales_in_mma:
            scales = problem.k // problem.formats.activations.channels
            of_scale = (torch.float8_e4m3fn,) if problem.formats.activations.scale == UE4M3 else (torch.uint8, torch.float8_e8m0fnu)
            check_tensor("a_sf", self.a_sf, of_scale, (rows, scales))
            if problem.gate_up and self.b_sf.dtype != torch.int32:
                raise ProblemError("b_sf.dtype", self.b_sf.dtype, "torch.int32, as gate_up_words makes them")
            check_bytes(problem, "b_sf", self.b_sf, (groups, problem.n))
            return
        if self.a_sf.dtype != torch.float32 or tuple(self.a_sf.shape) != (rows, problem.k_blocks):
            raise ProblemError("a_sf", (self.a_sf.dtype, tuple(self.a_sf.shape)), f"float32 {(rows, problem.k_blocks)}")
        check_tensor("b_sf", self.b_sf, torch.float32, (groups, problem.scale_rows, problem.k_blocks))

    def _check_d_sf(self, problem: GatherGemmProblem) -> None:
        if not (problem.gate_up and problem.hidden.scale):
            if self.d_sf is not None:
                raise ProblemError("out_sf", "a tensor", "None without gate_up" if not problem.gate_up else "None of BF16")
            return
        hidden = problem.hidden
        shape = (len(self.d), problem.d_columns // hidden.channels)
        if hidden.scale in (UE8M0, UE4M3):
            if self.d_sf is None:
                raise ProblemError("out_sf", None, f"a {TORCH_DTYPES[hidden.scale]} tensor of gate and up")
            check_tensor("out_sf", self.d_sf, TORCH_DTYPES[hidden.scale], shape, self.a.device)
            return
        if self.d_sf is None or self.d_sf.dtype != torch.float32 or tuple(self.d_sf.shape) != shape:
            raise ProblemError("out_sf", None if self.d_sf is None else (self.d_sf.dtype, tuple(self.d_sf.shape)), f"float32 {shape}")
        check_device("out_sf", self.d_sf, self.a.device)
        if not has_kernel_strides(self.d_sf):
            raise ProblemError("out_sf.stride()", self.d_sf.stride(), "those of scales_by_column")

    def _check_preactivations(self, problem: GatherGemmProblem) -> None:
        name, wanted = "preactivations", problem.preactivations
        stored = given_where(wanted, name, self.preactivations, "a bfloat16 tensor", "None where gate and up are not stored")
        if stored is not None:
            check_tensor(name, stored, torch.bfloat16, (len(self.d), problem.n), self.a.device, TMA_ALIGNMENT)

    def _check_factors(self, problem: GatherGemmProblem) -> None:
        allowed = {"factors": problem.has_factors, "up_factors": problem.hidden.factor, "hidden_factors": problem.hidden.factor}
        for name, wanted in allowed.items():
            none = f"None with {problem.recipe}" + (f" and output = {problem.output}" if problem.has_factors else "")
            factors = given_where(wanted, name, getattr(self, name), "a float32 tensor", none)
            if factors is not None:
                check_tensor(name, factors, torch.float32, (problem.num_groups,), self.a.device)

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
        """An upper bound of the rows of all experts together; ends beyond it are cut off."""
        return min(len(self.a) if self.sources is None else self.sources.numel(), len(self.d))

    def scales(self) -> KernelScales:
        if self.a_sf.dtype != torch.float32:
            return KernelScales(self.a_sf, scale_words(self.b_sf))
        return KernelScales(scales_by_column(self.a_sf) if self.sources is None else self.a_sf, self.b_sf)

    def operands(self, scales: KernelScales) -> dict[str, torch.Tensor]:
        a_sf = scales.a_storage if self.sources is None else scales.a
        some = {name: found for name in OPTIONAL if (found := getattr(self, name)) is not None}
        if self.gradient is not None:
            some |= {"gate_up": self.gradient.gate_up, "row_weights": self.gradient.row_weights}
        return {"a": self.a, "b": self.b, "groups": self.ends, "b_sf": scales.b, "a_sf": a_sf, **some}

    def results(self) -> dict[str, torch.Tensor]:
        stored = {} if self.preactivations is None else {"preactivations": self.preactivations}
        traced = {} if self.trace is None else {"trace": self.trace}
        if self.gradient is not None:
            traced |= {"weighted": self.gradient.weighted, "dots": self.gradient.dots}
        return {"d": self.d, **({} if self.d_sf is None else {"d_sf": KernelScales(self.d_sf, self.d_sf).a_storage}), **stored, **traced}

    def arguments(self, scales: KernelScales, counter: int) -> dict[str, int]:
        """The arguments of a launch by name; `scales` is what the method `scales` returns, `counter` an address or 0."""
        tensors = {**self.operands(scales), **self.results(), "a_sf": scales.a}
        numbers = {"counter": counter, "m": self.rows, "a_rows": len(self.a), "d_rows": len(self.d)}
        strides = {
            "a_sf_ld": scales.a_ld if self.sources is None else scales.a.shape[1],
            "d_sf_ld": 0 if self.d_sf is None else self.d_sf.stride(1),
        }
        return {"d_sf": 0, "sources": 0, **{name: tensor.data_ptr() for name, tensor in tensors.items()}, **numbers, **strides}

    def with_stamps(self, config: GemmConfig | Sm100GemmConfig) -> GatherTensors:
        """The same with memory for the stamps of a traced kernel, `inspect.spans.spans_of` reads them.  Raises `ProblemError` for a
        configuration without."""
        if not config.trace:
            raise ProblemError("trace", config.trace, "True of a configuration whose warps leave stamps")
        shape = trace_buffer(config.num_sms, config.num_threads // 32)["stamps"].field.shape
        return replace(self, trace=torch.zeros(shape, dtype=torch.int64, device=self.a.device))
