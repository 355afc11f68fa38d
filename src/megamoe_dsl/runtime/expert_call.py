"""Tensors of a call of a MoE layer on one GPU: their checks, the workspace between launches, and the arguments of each launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from ..blocks.gemm.problem import I32, I64, SCALE_BLOCK
from ..hardware.operand_tile import SCALES_PER_WORD
from ..kernels.expert_layer import ExpertLayer, workspace
from ..layouts.region import Region
from ..problem import ProblemError
from ..quant import NVFP4_BLOCK, no_scales
from ..quant.weights import stored_row
from ..recipe import ExpertFactors
from .buffers import check_dims, check_tensor
from .gemm_scales import TMA_ALIGNMENT, check_no_scales, given_scales, rows_of_words
from .gemm_tensors import OUTPUT_DTYPES, UNPACKED_ALIGNMENT, GemmTensors

INDEX_DTYPES = {I64: torch.int64, I32: torch.int32}
NVFP4_WORD = SCALES_PER_WORD * NVFP4_BLOCK
"""Values with scales in one 32-bit word, in NVFP4."""


class LayerOperands(NamedTuple):
    """Tensors of a call beside x and its routing; None if the layer does not have one.

    w1, w2        float8_e4m3fn or bfloat16 [num_experts, 2 intermediate, hidden] and [num_experts, hidden, intermediate]; two E2M1 a uint8
    w1_sf, w2_sf  float32 for every 128 x 128; with E2M1 from `gemm_weights`; with bfloat16 `no_scales`, from callers None
    w1_bias, w2_bias  float32 or bfloat16, both the same, [num_experts, rows]
    preactivations  bfloat16 [tokens * topk, 2 intermediate], for gate and up
    factors       float32 [5, num_experts] of NVFP4, from `expert_factors`
    """

    w1: torch.Tensor
    w1_sf: Any
    w2: torch.Tensor
    w2_sf: Any
    w1_bias: torch.Tensor | None = None
    w2_bias: torch.Tensor | None = None
    preactivations: torch.Tensor | None = None
    factors: torch.Tensor | None = None

    @property
    def weights(self) -> tuple[torch.Tensor | None, ...]:
        return self[:6]

    def with_scales(self) -> LayerOperands:
        """With `no_scales` in place of None.  Raises `ProblemError` for weights that lack scales."""
        scales = given_scales("w1_sf", self.w1, self.w1_sf), given_scales("w2_sf", self.w2, self.w2_sf)
        return self._replace(w1_sf=scales[0], w2_sf=scales[1])


def between_launches(name: str) -> cached_property[torch.Tensor]:
    """A field of a call's workspace, as a tensor."""
    return cached_property(lambda call: call.region.view(call.workspace, name))


@dataclass(frozen=True)
class ExpertCall:
    """A call; tensors between launches are made on first use.

    x             bfloat16 [tokens, hidden], 16-byte aligned
    topk_idx      int64 or int32, as the layer says, [tokens, topk]; -1 masks a slot
    topk_weights  float32 or bfloat16, as the layer says, [tokens, topk]
    operands      with scales, or `no_scales`
    memory        uint8 [bytes of `region`], the workspace; None: allocated on first use
    """

    layer: ExpertLayer
    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    operands: LayerOperands
    memory: torch.Tensor | None = None

    def check(self) -> None:
        """Raises `ProblemError` that names the tensor and what is wrong with it; reads no tensor."""
        layer, w, slots, device = self.layer, self.operands, (self.tokens, self.layer.topk), self.x.device
        check_dims("x", self.x, 2, f"(tokens, {layer.hidden})")
        layer.routing.check_num_tokens(self.tokens, "x.shape[0]")
        if w.factors is None and w.w1_sf.dtype == torch.int32 and w.w1_sf.dim() == 3 and w.w1_sf.shape[1] * NVFP4_WORD == layer.hidden:
            raise ProblemError("factors", None, "those of expert_factors beside w1_sf with a scale for every 16 values")
        of_both = "beside the other linear's"
        for name, wanted, where in (("factors", layer.formats.activations.factor, "with nvfp4xnvfp4"), ("w2_bias", layer.biases, of_both)):
            if (getattr(w, name) is not None) != bool(wanted):
                raise ProblemError(name, None if wanted else "a tensor", f"a tensor {where}" if wanted else f"None but {where}")
        check_tensor("x", self.x, torch.bfloat16, (self.tokens, layer.hidden), device, TMA_ALIGNMENT)
        check_tensor("topk_idx", self.topk_idx, INDEX_DTYPES[layer.indices], slots, device)
        check_tensor("topk_weights", self.topk_weights, OUTPUT_DTYPES[layer.weights], slots, device)
        self._check_matrix("w1", 2 * layer.intermediate, layer.hidden)
        self._check_matrix("w2", layer.hidden, layer.intermediate)
        if w.preactivations is not None:
            check_tensor("preactivations", w.preactivations, torch.bfloat16, (self.rows, 2 * layer.intermediate), device, TMA_ALIGNMENT)
        if w.factors is not None:
            check_tensor("factors", w.factors, torch.float32, (len(ExpertFactors._fields), layer.num_experts), device)

    def _check_matrix(self, name: str, rows: int, k: int) -> None:
        """Checks a linear's weights, scales and biases."""
        layer, formats, experts, device = self.layer, self.layer.formats, self.layer.num_experts, self.x.device
        weights, scales, bias = (getattr(self.operands, field) for field in (name, f"{name}_sf", f"{name}_bias"))
        dtype, row = stored_row(formats.weights, k)
        check_tensor(name, weights, dtype, (experts, rows, row), device, UNPACKED_ALIGNMENT if formats.scales_in_mma else TMA_ALIGNMENT)
        if not formats.scaled:
            check_no_scales(layer.recipe, f"{name}_sf", scales, (experts, rows))
        elif formats.promoted:
            check_tensor(f"{name}_sf", scales, torch.float32, (experts, rows // SCALE_BLOCK, k // SCALE_BLOCK), device)
        else:
            words = formats.weights.scales_of(k) // SCALES_PER_WORD
            check_tensor(f"{name}_sf", scales, torch.int32, (experts, words, rows_of_words(rows)), device, TMA_ALIGNMENT)
        if bias is not None:
            kind = OUTPUT_DTYPES[layer.biases]
            check_tensor(f"{name}_bias", bias, kind, (experts, rows), device, 2 * kind.itemsize)

    @property
    def tokens(self) -> int:
        return len(self.x)

    @property
    def rows(self) -> int:
        return self.tokens * self.layer.topk

    @cached_property
    def region(self) -> Region:
        return workspace(self.layer, self.tokens)

    @cached_property
    def workspace(self) -> torch.Tensor:
        return self.memory if self.memory is not None else torch.empty(self.region.size, dtype=torch.uint8, device=self.x.device)

    def _view(self, name: str) -> torch.Tensor:
        return self.region.view(self.workspace, name)

    x_q = between_launches("x_q")  # quantized tokens; no rows in bf16xbf16
    x_sf = between_launches("x_sf")
    ends = between_launches("ends")  # where each expert's rows end
    sources = between_launches("sources")  # the token of each row
    positions = between_launches("positions")  # the row of each slot

    @cached_property
    def each_factor(self) -> ExpertFactors | None:
        """Factors of tokens, sums, and activated gate and up; None unless NVFP4."""
        return None if self.operands.factors is None else ExpertFactors(*self.operands.factors)

    @cached_property
    def y(self) -> torch.Tensor:
        return torch.empty_like(self.x)

    @cached_property
    def fc1(self) -> GemmTensors:
        """Tensors of Linear1, which gathers rows from the tokens, quantized or not."""
        formats, w, each = self.layer.formats, self.operands, self.each_factor
        a, a_sf = (self.x_q, self.x_sf) if formats.scaled else (self.x, no_scales(self.x))
        h_sf = self._view("h_sf") if formats.scaled else None
        if h_sf is not None and formats.promoted:
            h_sf = h_sf[:, : self.rows].T
        gate, up, hidden = (None, None, None) if each is None else (each.gate, each.up, each.hidden)
        activated: Any = {"d_sf": h_sf, "preactivations": w.preactivations, "up_factors": up, "hidden_factors": hidden}
        operands = a, a_sf, w.w1, w.w1_sf, self._view("h"), self.ends
        return GemmTensors(*operands, gate, w.w1_bias, self.sources, **activated)

    @cached_property
    def fc2(self) -> Mapping[int, GemmTensors]:
        """Tensors of Linear2's launches by first column; all write to the same memory."""
        h, h_sf, w = self.fc1.d, self.fc1.d_sf, self.operands
        a, rows = (h, no_scales(h) if h_sf is None else h_sf), self._view("rows")
        if self.layer.formats.scales_in_mma:
            factors = None if self.each_factor is None else self.each_factor.fc2
            return {0: GemmTensors(*a, w.w2, w.w2_sf, rows, self.ends, factors)}
        hidden, columns, parts = self.layer.hidden, rows.shape[1], {}
        for first in range(0, hidden, columns):
            part = partial(part_of, first=first, columns=columns, hidden=hidden)
            bias = None if w.w2_bias is None else part(w.w2_bias)
            parts[first] = GemmTensors(*a, part(w.w2), part(w.w2_sf), rows, self.ends, bias=bias)
        return parts

    def route_tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Tensors that the first launch reads, and that it writes, by argument."""
        names = ("x_q", "x_sf", "ends", "sources", "positions")
        written = {**{name: getattr(self, name) for name in names}, "table": self._view("table")}
        factor = {} if self.each_factor is None else {"factor": self.each_factor.x}
        return {"x": self.x, "topk_idx": self.topk_idx, **factor}, written

    def sum_tensors(self, first: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """As `route_tensors`, of the sum of columns from `first` on."""
        read = {"rows": self._view("rows"), "positions": self.positions, "weights": self.topk_weights}
        return read, {"y": self.y.view(-1)[first:]}

    def arguments(self, tensors: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]) -> dict[str, int]:
        read, written = tensors
        return {**{name: tensor.data_ptr() for name, tensor in {**read, **written}.items()}, "num_tokens": self.tokens}


def part_of(of_w2: torch.Tensor, first: int, columns: int, hidden: int) -> torch.Tensor:
    """The part of W2, its scales or its biases for a launch of some of the `hidden` columns: rows from column `first` of the first expert
    to the last column of the last expert."""
    experts, rows = of_w2.shape[:2]
    begin, end = rows * first // hidden, rows * (first + columns) // hidden
    return of_w2 if columns == hidden else of_w2.flatten(0, 1)[begin : (experts - 1) * rows + end]
