"""What the launches of a layer on one GPU leave for one another."""

from __future__ import annotations

from ...blocks.gemm.tile import SCALE_STEP
from ...layouts.arith import align
from ...layouts.region import BF16, E4M3, F32, I32, I64, U8, Field, Region
from ...recipe import BF16 as BF16_VALUES
from ...recipe import E2M1, UE4M3, UE8M0
from ...recipe import E4M3 as E4M3_VALUES
from ...recipe import F32 as F32_SCALES
from ..expert_layer import ExpertLayer
from .config import MOST_SORTERS

TYPES = {E4M3_VALUES: E4M3, E2M1: U8, BF16_VALUES: BF16}
"""Of a recipe's elements in memory."""
SCALE_TYPES = {F32_SCALES: F32, UE8M0: U8, UE4M3: E4M3, None: U8}
"""Of its scales; none of them where there are none."""
ALIGNMENT = 128
"""Bytes, of each field: TMA and 16-byte loads take any of them, and no two share a line of L2."""


def chosen_experts(tokens: int, topk: int) -> Region:
    """Each token's experts, and their weights, where a call chooses them itself."""
    slots = (tokens, topk)
    return Region.stack("chosen_experts", Field("topk_idx", slots, I64, ALIGNMENT), Field("topk_weights", slots, F32, ALIGNMENT))


def workspace(layer: ExpertLayer, tokens: int) -> Region:
    """Of a call of so many tokens.

    x_q, x_sf   tokens, quantized, and their scales; none where they stay as they are
    ends        where each expert's rows end
    sources     the token of each row
    positions   the row of each slot
    table       counts of the CTAs that sort
    h, h_sf     activated rows of all experts, and their scales, if any: FP32 a line for each 128 channels, of a byte a line for each row
    rows        results of all experts
    """
    rows = tokens * layer.topk
    x, h = layer.formats.activations, layer.formats.hidden
    sf, channels, quantized = SCALE_TYPES[x.scale], h.scales_of(layer.intermediate), tokens if x.scale else 0
    # Lines of scales by channels where partial sums are promoted, by rows where the tensor core applies them.
    h_sf = (channels, align(rows, SCALE_STEP)) if layer.formats.promoted else (rows, channels)
    return Region.stack(
        "workspace",
        Field("x_q", (quantized, x.row_bytes(layer.hidden)), TYPES[x.element], ALIGNMENT),
        Field("x_sf", (quantized, x.scales_of(layer.hidden)), sf, ALIGNMENT),
        Field("ends", (layer.num_experts,), I32, ALIGNMENT),
        Field("sources", (rows,), I32, ALIGNMENT),
        Field("positions", (tokens, layer.topk), I32, ALIGNMENT),
        Field("table", (MOST_SORTERS, layer.num_experts), I32, ALIGNMENT),
        Field("h", (rows, h.row_bytes(layer.intermediate) // TYPES[h.element].itemsize), TYPES[h.element], ALIGNMENT),
        Field("h_sf", h_sf, sf, ALIGNMENT),
        Field("rows", (rows, layer.hidden), BF16, ALIGNMENT),
    )
