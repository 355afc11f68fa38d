"""What the launches of a layer on one GPU leave for one another."""

from __future__ import annotations

from ...layouts.arith import align
from ...layouts.region import BF16, E4M3, F32, I32, Field, Region
from ..gemm.problem import SCALE_BLOCK
from ..gemm.smem_plan import SCALE_STEP
from .config import MOST_SORTERS
from .layer import ExpertLayer

ALIGNMENT = 128
"""Bytes, of each field: TMA and 16-byte loads take any of them, and no two share a line of L2."""


def workspace(layer: ExpertLayer, tokens: int) -> Region:
    """Of a call of so many tokens.

    x_q, x_sf   tokens in E4M3 and their scales
    ends        where each expert's rows end
    sources     the token of each row
    positions   the row of each slot
    table       counts of the CTAs that sort
    h, h_sf     activated rows of all experts, and their scales, a line for each 128 channels
    rows        results of all experts
    """
    rows = tokens * layer.topk
    blocks, channels = layer.hidden // SCALE_BLOCK, layer.intermediate // SCALE_BLOCK
    return Region.stack(
        "workspace",
        Field("x_q", (tokens, layer.hidden), E4M3, ALIGNMENT),
        Field("x_sf", (tokens, blocks), F32, ALIGNMENT),
        Field("ends", (layer.num_experts,), I32, ALIGNMENT),
        Field("sources", (rows,), I32, ALIGNMENT),
        Field("positions", (tokens, layer.topk), I32, ALIGNMENT),
        Field("table", (MOST_SORTERS, layer.num_experts), I32, ALIGNMENT),
        Field("h", (rows, layer.intermediate), E4M3, ALIGNMENT),
        Field("h_sf", (channels, align(rows, SCALE_STEP)), F32, ALIGNMENT),
        Field("rows", (rows, layer.hidden), BF16, ALIGNMENT),
    )
