"""Tensors of a launch of a GEMM: their checks, and the launch's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from ..blocks.gemm.problem import BF16, CONTIGUOUS, MASKED, ROW_BLOCK, GemmProblem
from ..hardware.packed_tile import TILE_BYTES, tiles_of
from ..problem import ProblemError
from ..quant.weights import stored_row
from ..recipe import E2M1, F32
from .buffers import check_aligned, check_dims, check_tensor
from .gemm_scales import TMA_ALIGNMENT, by_block, capacity_step, check_scales, kernel_scales, token_scales

OUTPUT_DTYPES = {BF16: torch.bfloat16, F32: torch.float32}
OUTPUTS = {dtype: name for name, dtype in OUTPUT_DTYPES.items()}
UNPACKED_ALIGNMENT = 32


def number_of_rows(values: torch.Tensor) -> int:
    return values.numel() // values.shape[-1]


@dataclass(frozen=True)
class GemmTensors:
    """Operands and results, None if the problem does not have one.  Elements are float8_e4m3fn, bfloat16, or two E2M1 a uint8.

    a       [m, k]; of a masked problem [num_groups, capacity, k], as d; with gathered rows [tokens, k]
    a_sf    float32 [m, k / 128], copied unless strided as by `scales_by_column`; UE8M0 uint8 or float8_e8m0fnu [m, k / 32] or UE4M3
            float8_e4m3fn [m, k / 16], copied unless they are `scale_words` of all rows; with bfloat16 `no_scales`.  Of experts, scales of
            gathered rows and one-byte scales are contiguous and never copied
    b       [n, k], or tiles of E2M1 [ceil(n / 256), k / 128, 17408]; of a problem with groups [num_groups, ...]
    b_sf    float32 [ceil(n / 128), k / 128], UE8M0 [n, k / 32] or `scale_words` of them, uint8 [n, 0] of tiles; with groups
            [num_groups, ...]; of gate and up on SM100 `gate_up_words`
    d       bfloat16 or float32 [m, n]; of experts bfloat16 [rows of the result layout, n], after an activation [.., n / 2]; rows of no
            expert are not written
    groups  int32, see `GemmArguments`
    factors, up_factors, hidden_factors  float32 [1] or [num_groups]: factor of D or of gate's sums; of up's sums; of the stored rows
    bias    float32 or bfloat16 [num_groups, n], as the problem says
    sources int32 [m], the row of a for each gathered row
    d_sf    scales of activated rows: float32 [rows of d, n / 256], strided as by `scales_by_column`, or contiguous bytes
    preactivations  bfloat16 [rows of d, n], gate and up
    gate_up, row_weights, weighted, dots  see `GemmArguments`; d is then [rows, 2 n]
    trace   int64, the stamps of a traced kernel, which `inspect.spans.spans_of` reads

    With sums over the rows of groups (varlen-K) d is [num_groups, n, k], `groups` holds where each group's rows end, and
    in bf16xbf16  a is the gathered side, [tokens, columns], b the other, [m or more, columns], rows sorted by group; rows behind the last
                  group are ignored
    in FP8        a and b are [n, m] and [k, m], columns sorted by group, each group a multiple of 128; scales are float32 [m / 128, n] and
                  [m / 128, k], of MXFP8 int32 `scale_words`, n and k rounded up to 128
    """

    a: torch.Tensor
    a_sf: torch.Tensor
    b: torch.Tensor
    b_sf: torch.Tensor
    d: torch.Tensor
    groups: torch.Tensor | None = None
    factors: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    sources: torch.Tensor | None = None
    d_sf: torch.Tensor | None = None
    preactivations: torch.Tensor | None = None
    up_factors: torch.Tensor | None = None
    hidden_factors: torch.Tensor | None = None
    gate_up: torch.Tensor | None = None
    row_weights: torch.Tensor | None = None
    weighted: torch.Tensor | None = None
    dots: torch.Tensor | None = None
    trace: torch.Tensor | None = None

    def check(self, problem: GemmProblem) -> None:
        """For a caller's tensors of a dense or grouped problem: raises `ProblemError` that names a tensor that does not fit; reads none."""
        p, masked, check = problem, problem.kind == MASKED, cast(Any, partial(check_tensor, device=self.a.device))
        check_dims("a", self.a, 3 if masked else 2, "[num_groups, capacity, k]" if masked else "[m, k]")
        lead = tuple(self.a.shape[:-1])
        if masked and lead[0] != p.num_groups:
            raise ProblemError("a.shape[0]", lead[0], f"num_groups = {p.num_groups}")
        step = capacity_step(p)
        if masked and lead[1] % step:
            raise ProblemError("a.shape[1]", lead[1], f"a multiple of {step}: TMA fetches the scales of so many rows at least")
        p.check_rows(torch.Size(lead).numel(), "a.shape[0]")
        a, b = (stored_row(one, p.k) for one in (p.formats.activations, p.formats.weights))
        tiles = (*p.b_lead[:-1], tiles_of(p.n), p.k_blocks, TILE_BYTES)
        check("a", self.a, a[0], (*lead, a[1]), alignment=TMA_ALIGNMENT)
        check("b", self.b, b[0], tiles if p.decodes else (*p.b_lead, b[1]), alignment=alignment_of_b(p))
        check_scales(p, lead, self.a_sf, self.b_sf, self.a.device)
        check("out", self.d, OUTPUT_DTYPES[p.output], (*lead, p.n), alignment=TMA_ALIGNMENT)
        if p.has_groups:
            check("groups", self.groups, torch.int32, (self.rows // ROW_BLOCK if p.kind == CONTIGUOUS else p.num_groups,))
        if self.factors is not None:
            check("factors", self.factors, torch.float32, (p.num_groups,))

    def check_addresses(self, problem: GemmProblem) -> None:
        """The part of `check` that differs between tensors of one layout: addresses."""
        check_aligned("a", self.a, TMA_ALIGNMENT)
        check_aligned("b", self.b, alignment_of_b(problem))
        check_aligned("out", self.d, TMA_ALIGNMENT)
        for name, sf in (("a_sf", self.a_sf), ("b_sf", self.b_sf)):
            if sf.dtype == torch.int32:  # other scales are copied
                check_aligned(name, sf, TMA_ALIGNMENT)

    @property
    def rows(self) -> int:
        """An upper bound of the rows of all groups."""
        if self.sources is None and self.d.dim() > self.a.dim():  # columns of groups
            return self.a.shape[-1]
        listed = number_of_rows(self.a) if self.sources is None else self.sources.numel()
        return listed if self.d.dim() > self.a.dim() else min(listed, number_of_rows(self.d))

    def operands(self, problem: GemmProblem) -> dict[str, torch.Tensor]:
        """Tensors that a launch reads, by argument; scales in the kernel's layout, copied if necessary."""
        in_place = problem.gathers or problem.sums_rows or (problem.of_experts and self.a_sf.dtype != torch.float32)
        scales = {"a_sf": self.a_sf if in_place else token_scales(self.a_sf), "b_sf": kernel_scales(self.b_sf)}
        some = ("groups", "sources", "factors", "up_factors", "hidden_factors", "bias", "gate_up", "row_weights")
        return {"a": self.a, "b": self.b, **scales, **self._given(*some)}

    def results(self) -> dict[str, torch.Tensor]:
        """Tensors that a launch writes, by argument."""
        found = self._given("d", "preactivations", "weighted", "dots", "trace")
        return found if self.d_sf is None else {**found, "d_sf": by_block(self.d_sf)}

    def arguments(self, problem: GemmProblem, operands: dict[str, torch.Tensor], counter: int) -> dict[str, int]:
        """The arguments of a launch by name; `operands` is the result of that method, `counter` an address or 0."""
        addresses = {name: tensor.data_ptr() for name, tensor in {**operands, **self.results()}.items()}
        numbers = {"groups": 0, "counter": counter, "m": self.rows, "a_sf_ld": operands["a_sf"].stride(0)}
        if problem.of_experts:
            a_rows, d_rows = (self.rows if problem.sums_rows and not problem.gathers else len(self.a)), number_of_rows(self.d)
            numbers |= {"d_sf": 0, "sources": 0, "a_rows": a_rows, "d_rows": d_rows}
            numbers["d_sf_ld"] = 0 if self.d_sf is None else self.d_sf.stride(1)
        if problem.sums_rows or problem.gathers:
            numbers["a_sf_ld"] = 0 if problem.sums_rows else self.a_sf.shape[1]
        return {**numbers, **addresses}

    def _given(self, *names: str) -> dict[str, torch.Tensor]:
        """Those of these fields that are not None."""
        return {name: found for name in names if (found := getattr(self, name)) is not None}


def alignment_of_b(problem: GemmProblem) -> int:
    """Alignment of B in bytes; larger where TMA unpacks E2M1 beside a wider A."""
    weights, acts = problem.formats.weights.element, problem.formats.activations.element
    return UNPACKED_ALIGNMENT if weights == E2M1 != acts and not problem.decodes else TMA_ALIGNMENT
