"""Sums of a thread with biases (../bias.py).  Of every 8 tokens a thread has two, and four weight rows: 8 k + lane / 4 of its warp's 32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....device.memory import load_f32, load_f32x2
from ....hardware.cta_pair import BLOCK_N
from ..bias import add_bias, bias_address, weighs_bias
from ..context import Context


def load_biases(ctx: Context, tile: Any, phase: int, n_block: Any) -> tuple[Any, ...]:
    """Biases of the thread's weight rows among the CTA's 128; none in a layer without biases."""
    if not ctx.config.problem.biases:
        return ()
    address = bias_address(ctx, phase, tile.block.expert, n_block * BLOCK_N + tile.warp * 32 + (tile.lane >> 2))
    return tuple(load_f32(address + 32 * k) for k in range(4))


def with_bias(ctx: Context, phase: int, sums: Sequence[Any], biases: Sequence[Any], row: Any) -> tuple[Any, ...]:
    """The sums of 8 tokens, of which the thread's first has the pool row `row`."""
    if not biases:
        return tuple(sums)
    weights = load_f32x2(ctx.at("fc1_topk_weights", row)) if weighs_bias(ctx, phase) else (None, None)
    return tuple(add_bias(ctx, phase, sums[2 * k + q], biases[k], weights[q]) for k in range(4) for q in range(2))
