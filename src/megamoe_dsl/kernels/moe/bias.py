"""Biases of an expert's rows, which epilogues add to sums before these are rounded: as they are in Linear1, times the top-k weight in
Linear2, unless that weight is applied in combine."""

from __future__ import annotations

from typing import Any

from cutlass import Int64

from ...device.cast import fma
from ...device.memory import load_f32, load_f32x2
from ...schedule.fused_moe import FC1
from .context import Context
from .layouts.smem_plan import TILE_ROWS


def bias_address(ctx: Context, phase: int, expert: Any, row: Any) -> Any:
    """Address of the bias of a weight row, counted in the order of the weights."""
    config, args = ctx.config, ctx.args
    base, tiles = (args.fc1_bias, config.fc1_n_blocks) if phase == FC1 else (args.fc2_bias, config.fc2_n_blocks)
    return base + (Int64(expert) * (tiles * TILE_ROWS) + Int64(row)) * 4


def weighs_bias(ctx: Context, phase: int) -> bool:
    """Whether a token's bias is multiplied with its top-k weight."""
    return phase != FC1 and not ctx.config.problem.weigh_results


def weight_of(ctx: Context, row: Any) -> Any:
    """The top-k weight of a pool row, for what Linear2 reads; 1.0 where combine applies it."""
    return 1.0 if ctx.config.problem.weigh_results else load_f32(ctx.at("fc1_topk_weights", row))


def weights_of_pair(ctx: Context, address: Any) -> tuple[Any, ...]:
    """The same of two rows, from the address of the first one's."""
    return (1.0, 1.0) if ctx.config.problem.weigh_results else load_f32x2(address)


def add_bias(ctx: Context, phase: int, sum_: Any, bias: Any, weight: Any) -> Any:
    """A sum with its row's bias."""
    return fma(bias, weight, sum_) if weighs_bias(ctx, phase) else sum_ + bias
