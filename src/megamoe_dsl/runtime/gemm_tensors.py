"""Tensors of a launch of a GEMM: their checks, and the launch's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..blocks.gemm.problem import BF16, CONTIGUOUS, DOT_COLUMNS, MASKED, ROW_BLOCK, SCALE_BLOCK, SORTED_BLOCKED, GemmProblem
from ..hardware.packed_tile import TILE_BYTES, tiles_of
from ..problem import ProblemError
from ..quant.weights import TORCH_DTYPES, stored_row
from ..recipe import E2M1, F32
from .buffers import Wanted, check_aligned, check_dims, check_wanted
from .gemm_scales import (
    TMA_ALIGNMENT,
    by_block,
    capacity_step,
    check_no_scales,
    has_kernel_strides,
    kernel_scales,
    rows_of_words,
    token_scales,
    wanted_scales,
)

OUTPUT_DTYPES = {BF16: torch.bfloat16, F32: torch.float32}
OUTPUTS = {dtype: name for name, dtype in OUTPUT_DTYPES.items()}
UNPACKED_ALIGNMENT = 32
WHERE = {
    "groups": "beside groups of rows",
    "factors": "where number formats have a factor",
    "bias": "of a problem with biases",
    "sources": "where rows are gathered",
    "d_sf": "of gate and up that have scales",
    "preactivations": "where gate and up are stored",
    "up_factors": "where gate and up become a format with a factor",
    "hidden_factors": "where gate and up become a format with a factor",
    **dict.fromkeys(("gate_up", "row_weights", "weighted", "dots"), "of a problem with a gradient"),
}
"""Optional tensors, and which problems have them."""


SIDES = {"a": "left", "a_sf": "left_sf", "b": "right", "b_sf": "right_sf"}
"""Names of the operands of `k_grouped_gemm`."""


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
        """Raises `ProblemError` that names the caller's tensor and what is wrong with it; reads no tensor."""
        p: Any = problem
        names = {"d": "out", "d_sf": "out_sf"} | ({"groups": "ends"} if p.of_experts else {})
        if p.sums_rows and not p.gathers:
            names |= SIDES
        wanted = self._sums(p) if p.sums_rows else self._of_experts(p) if p.of_experts else self._of_rows(p)
        given = {name: tensor for name, tensor in vars(self).items() if name != "trace"}
        check_wanted(given, wanted, WHERE, self.a.device, names)
        if not (p.formats.scaled or p.sums_rows):
            check_no_scales(p.recipe, "a_sf", self.a_sf, tuple(self.a.shape[:-1]))
            check_no_scales(p.recipe, "b_sf", self.b_sf, p.b_lead)
        if self.d_sf is not None and self.d_sf.dtype == torch.float32 and not has_kernel_strides(self.d_sf):
            raise ProblemError("out_sf.stride()", self.d_sf.stride(), "those of scales_by_column")

    def _of_rows(self, p: GemmProblem) -> dict[str, Wanted]:
        """Checks for a dense or grouped problem.  Raises `ProblemError` for a wrong shape of rows."""
        dims = 3 if p.kind == MASKED else 2
        check_dims("a", self.a, dims, "[num_groups, capacity, k]" if dims == 3 else "[m, k]")
        lead = tuple(self.a.shape[:-1])
        if dims == 3 and lead[0] != p.num_groups:
            raise ProblemError("a.shape[0]", lead[0], f"num_groups = {p.num_groups}")
        step = capacity_step(p)
        if dims == 3 and lead[1] % step:
            raise ProblemError("a.shape[1]", lead[1], f"a multiple of {step}: TMA fetches the scales of so many rows at least")
        entries = self.rows // ROW_BLOCK if p.kind == CONTIGUOUS else p.num_groups
        return {
            **self._operands(p, lead),
            **wanted_scales(p, lead, self.a_sf, self.b_sf),
            "d": Wanted(OUTPUT_DTYPES[p.output], (*lead, p.n), TMA_ALIGNMENT),
            **({"groups": Wanted(torch.int32, (entries,))} if p.has_groups else {}),
        }

    def _of_experts(self, p: Any) -> dict[str, Wanted]:
        """Checks for a problem with rows of experts."""
        for name, tensor in (("a", self.a), ("out", self.d)):
            check_dims(name, tensor, 2, "[rows, k]" if name == "a" else "[rows, n]")
        for name, layout, rows in (("a", p.source, len(self.a)), ("out", p.result, len(self.d))):
            if layout == SORTED_BLOCKED and rows % ROW_BLOCK:
                raise ProblemError(f"{name}.shape[0]", rows, f"a multiple of {ROW_BLOCK} where rows are {layout}")
        if p.gate_up and p.formats.scales_in_mma and self.b_sf.dtype != torch.int32:
            raise ProblemError("b_sf.dtype", self.b_sf.dtype, "torch.int32, as gate_up_words makes them")
        rows, m, hidden, bf16 = len(self.d), self.rows, p.hidden, torch.bfloat16
        dtype, row = stored_row(hidden, p.d_columns) if p.gate_up else (bf16, p.d_columns)
        found = {
            **self._operands(p, (len(self.a),)),
            **wanted_scales(p, (len(self.a),), self.a_sf, self.b_sf, words=False),
            "d": Wanted(dtype, (rows, row), TMA_ALIGNMENT),
            "groups": Wanted(torch.int32, (p.num_groups,)),
        }
        if p.gate_up and hidden.scale:
            shape = rows, p.d_columns // hidden.channels
            found["d_sf"] = Wanted(TORCH_DTYPES[hidden.scale], shape, strided=hidden.scale == F32)
        if p.preactivations:
            found["preactivations"] = Wanted(bf16, (rows, p.n), TMA_ALIGNMENT)
        if hidden.factor:
            found |= dict.fromkeys(("up_factors", "hidden_factors"), Wanted(torch.float32, (p.num_groups,)))
        if p.gradient:
            found["gate_up"] = Wanted(bf16, (rows, 2 * p.n), TMA_ALIGNMENT)
            found["row_weights"] = Wanted(torch.float32, (m,))
            found["weighted"] = Wanted(bf16, (rows, p.n), TMA_ALIGNMENT)
            found["dots"] = Wanted(torch.float32, (-(-p.n // DOT_COLUMNS), m))
        if p.gathers:
            found |= self._sources(p, len(self.a), "a")
            if "a_sf" in found:
                found["a_sf"] = found["a_sf"]._replace(strided=False, alignment=self.a_sf.element_size() * p.scales_at_once)
        return found

    def _operands(self, p: GemmProblem, lead: tuple[int, ...]) -> dict[str, Wanted]:
        """Checks of A, B, factors and bias."""
        p.check_rows(torch.Size(lead).numel(), "a.shape[0]")
        a, b = (stored_row(one, p.k) for one in (p.formats.activations, p.formats.weights))
        groups = p.b_lead[:-1]
        tiles = (*groups, tiles_of(p.n), p.k_blocks, TILE_BYTES)
        found = {"a": Wanted(a[0], (*lead, a[1]), TMA_ALIGNMENT)}
        shape = (*groups, p.k, p.n) if p.transposed_b else tiles if p.decodes else (*p.b_lead, b[1])
        found["b"] = Wanted(b[0], shape, alignment_of_b(p))
        if p.formats.weights.factor:
            found["factors"] = Wanted(torch.float32, (p.num_groups,))
        if p.biases:
            kind = OUTPUT_DTYPES[p.biases]
            found["bias"] = Wanted(kind, p.b_lead, 2 * kind.itemsize)
        return found

    def _sources(self, p: GemmProblem, rows: int, name: str) -> dict[str, Wanted]:
        """Check of the indices of gathered rows.  Raises `ProblemError` if there are no rows to gather from."""
        if self.sources is None:
            return {"sources": Wanted(torch.int32, ())}
        count = p.check_rows(self.sources.numel(), "sources.shape[0]")
        if count and not rows:
            raise ProblemError(f"{name}.shape[0]", 0, "1 or more where rows are gathered from it")
        return {"sources": Wanted(torch.int32, (count,))}

    def _sums(self, p: Any) -> dict[str, Wanted]:
        """Checks for sums over the rows of groups."""
        found = {
            "groups": Wanted(torch.int32, (p.num_groups,)),
            "d": Wanted(OUTPUT_DTYPES[p.output], (p.num_groups, p.n, p.k), TMA_ALIGNMENT),
        }
        if p.gathers:
            if self.sources is not None and self.sources.numel() > number_of_rows(self.b):
                raise ProblemError("sources.shape[0]", self.sources.numel(), f"at most {len(self.b)}, the rows of b")
            found["a"] = Wanted(torch.bfloat16, (len(self.a), p.tile_rows), TMA_ALIGNMENT)
            found["b"] = Wanted(torch.bfloat16, (len(self.b), p.tile_columns), TMA_ALIGNMENT)
            return found | self._sources(p, len(self.a), "a")
        rows = self.a.shape[-1]
        if p.check_rows(rows, "left.shape[1]") % SCALE_BLOCK:
            raise ProblemError("left.shape[1]", rows, f"a multiple of {SCALE_BLOCK}")
        for name, columns in (("a", p.n), ("b", p.k)):
            found[name] = Wanted(torch.float8_e4m3fn, (columns, rows), TMA_ALIGNMENT)
            dtype, width = (torch.float32, columns) if p.formats.promoted else (torch.int32, rows_of_words(columns))
            found[f"{name}_sf"] = Wanted(dtype, (rows // SCALE_BLOCK, width), TMA_ALIGNMENT)
        return found

    def check_addresses(self, problem: GemmProblem) -> None:
        """The part of `check` that differs between tensors of one layout: addresses, of a dense or grouped problem."""
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
