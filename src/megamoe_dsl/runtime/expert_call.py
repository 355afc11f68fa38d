"""Tensors of a call of a MoE layer on one GPU: what they must be, those between its launches, and the arguments of each launch."""

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
from .buffers import Wanted, check_dims, check_wanted
from .gemm_scales import TMA_ALIGNMENT, check_no_scales, given_scales, rows_of_words
from .gemm_tensors import OUTPUT_DTYPES, UNPACKED_ALIGNMENT, GemmTensors

INDEX_DTYPES = {I64: torch.int64, I32: torch.int32}
NVFP4_WORD = SCALES_PER_WORD * NVFP4_BLOCK
"""Values that a word of NVFP4's scales is of."""
WHERE = {
    "preactivations": "where the layer stores gate and up",
    "factors": "with nvfp4xnvfp4",
    **dict.fromkeys(("w1_bias", "w2_bias"), "beside the other linear's"),
}
"""Tensors that some layers have, and which."""


class LayerOperands(NamedTuple):
    """What a call has beside x and its routing; None for what its layer does not have.

    w1, w2        float8_e4m3fn or bfloat16 [num_experts, 2 intermediate, hidden] and [num_experts, hidden, intermediate]; two E2M1 a uint8
    w1_sf, w2_sf  float32 for every 128 x 128; of E2M1 as `gemm_weights` makes them; of bfloat16 `no_scales`, or None of a caller
    w1_bias, w2_bias  float32 or bfloat16, both the same, [num_experts, rows]
    preactivations  bfloat16 [tokens * topk, 2 intermediate], for gate and up
    factors       float32 [5, num_experts] of NVFP4, as `expert_factors` makes them
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
        """As a caller gives them, with `no_scales` of bfloat16.  Raises `ProblemError` for other weights that lack scales."""
        scales = given_scales("w1_sf", self.w1, self.w1_sf), given_scales("w2_sf", self.w2, self.w2_sf)
        return self._replace(w1_sf=scales[0], w2_sf=scales[1])


def between_launches(name: str) -> cached_property[torch.Tensor]:
    """A tensor of a call's workspace, by its field."""
    return cached_property(lambda call: call.region.view(call.workspace, name))


@dataclass(frozen=True)
class ExpertCall:
    """A call, whose tensors between launches are made when first asked for.

    x             bfloat16 [tokens, hidden], 16-byte aligned
    topk_idx      int64 or int32, as the layer says, [tokens, topk]; -1 masks a slot
    topk_weights  float32 or bfloat16, as the layer says, [tokens, topk]
    operands      with scales, or `no_scales`
    memory        uint8 [bytes of `region`], of what lies between launches; None: made when first asked for
    """

    layer: ExpertLayer
    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    operands: LayerOperands
    memory: torch.Tensor | None = None

    def check(self) -> None:
        """Raises `ProblemError` that names the tensor and what is wrong with it.  Reads none."""
        layer, w1_sf, factors = self.layer, self.operands.w1_sf, self.operands.factors
        check_dims("x", self.x, 2, f"(tokens, {layer.hidden})")
        layer.routing.check_num_tokens(self.tokens, "x.shape[0]")
        if factors is None and w1_sf.dtype == torch.int32 and w1_sf.dim() == 3 and w1_sf.shape[1] * NVFP4_WORD == layer.hidden:
            raise ProblemError("factors", None, "those of expert_factors beside w1_sf with a scale for every 16 values")
        slots, rows = (self.tokens, layer.topk), 2 * layer.intermediate
        wanted = {
            "x": Wanted(torch.bfloat16, (self.tokens, layer.hidden), TMA_ALIGNMENT),
            "topk_idx": Wanted(INDEX_DTYPES[layer.indices], slots),
            "topk_weights": Wanted(OUTPUT_DTYPES[layer.weights], slots),
            **self._wanted_matrix("w1", rows, layer.hidden),
            **self._wanted_matrix("w2", layer.hidden, layer.intermediate),
        }
        if layer.preactivations:
            wanted["preactivations"] = Wanted(torch.bfloat16, (self.rows, rows), TMA_ALIGNMENT)
        if layer.formats.activations.factor:
            wanted["factors"] = Wanted(torch.float32, (len(ExpertFactors._fields), layer.num_experts))
        others = {"x": self.x, "topk_idx": self.topk_idx, "topk_weights": self.topk_weights}
        check_wanted({**others, **self.operands._asdict()}, wanted, WHERE, self.x.device)
        for name, n in (("w1_sf", rows), ("w2_sf", layer.hidden)) if not layer.formats.scaled else ():
            check_no_scales(layer.recipe, name, getattr(self.operands, name), (layer.num_experts, n))

    def _wanted_matrix(self, name: str, rows: int, k: int) -> dict[str, Wanted]:
        """What a linear's weights have to be, with scales and biases."""
        layer, formats, experts = self.layer, self.layer.formats, self.layer.num_experts
        dtype, row = stored_row(formats.weights, k)
        found = {name: Wanted(dtype, (experts, rows, row), UNPACKED_ALIGNMENT if formats.scales_in_mma else TMA_ALIGNMENT)}
        if formats.promoted:
            found[f"{name}_sf"] = Wanted(torch.float32, (experts, rows // SCALE_BLOCK, k // SCALE_BLOCK))
        elif formats.scaled:
            words = formats.weights.scales_of(k) // SCALES_PER_WORD
            found[f"{name}_sf"] = Wanted(torch.int32, (experts, words, rows_of_words(rows)), TMA_ALIGNMENT)
        if layer.biases:
            kind = OUTPUT_DTYPES[layer.biases]
            found[f"{name}_bias"] = Wanted(kind, (experts, rows), 2 * kind.itemsize)
        return found

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

    x_q = between_launches("x_q")  # tokens, quantized; none where they stay as they are
    x_sf = between_launches("x_sf")
    ends = between_launches("ends")  # where each expert's rows end
    sources = between_launches("sources")  # the token of each row
    positions = between_launches("positions")  # the row of each slot

    @cached_property
    def each_factor(self) -> ExpertFactors | None:
        """Factors of tokens, of sums and of activated gate and up; None where the number formats have none."""
        return None if self.operands.factors is None else ExpertFactors(*self.operands.factors)

    @cached_property
    def y(self) -> torch.Tensor:
        return torch.empty_like(self.x)

    @cached_property
    def fc1(self) -> GemmTensors:
        """Tensors of Linear1, whose rows are gathered from tokens as they are or quantized."""
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
        """Tensors of Linear2's launches by their first columns; all leave results in the same place."""
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
        """What the first launch reads, and what it writes, by name; its counter is the device's."""
        names = ("x_q", "x_sf", "ends", "sources", "positions")
        written = {**{name: getattr(self, name) for name in names}, "table": self._view("table")}
        factor = {} if self.each_factor is None else {"factor": self.each_factor.x}
        return {"x": self.x, "topk_idx": self.topk_idx, **factor}, written

    def sum_tensors(self, first: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The same of the sum of columns from `first` on."""
        read = {"rows": self._view("rows"), "positions": self.positions, "weights": self.topk_weights}
        return read, {"y": self.y.view(-1)[first:]}

    def arguments(self, tensors: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]) -> dict[str, int]:
        read, written = tensors
        return {**{name: tensor.data_ptr() for name, tensor in {**read, **written}.items()}, "num_tokens": self.tokens}


def part_of(of_w2: torch.Tensor, first: int, columns: int, hidden: int) -> torch.Tensor:
    """W2, its scales or its biases as they are where a launch makes all `hidden` columns; else the rows from the first expert's of column
    `first` to the last expert's of the last column."""
    experts, rows = of_w2.shape[:2]
    begin, end = rows * first // hidden, rows * (first + columns) // hidden
    return of_w2 if columns == hidden else of_w2.flatten(0, 1)[begin : (experts - 1) * rows + end]
