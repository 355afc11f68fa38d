"""The rows of the pool: what CTAs tell one another about them, their top-k weights, and the biases that epilogues add to their sums.

Two waits are for what other CTAs write, and Linear1 signals its part.  In a pool that is a ring dispatch waits until the token block that
had the rows before has been read (schedule/fused_moe.py): what Linear1 reads of a block it has read when its outputs are there, and Linear2
waits for those, so the rows are free when Linear2 has read its operands and the places of its results.

Each wait has a watchdog, and each is an acquire: what was written before the counter reached its value is visible after the wait.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.cast import fma
from ...device.memory import fence_async_global, load_f32, load_f32x2, reduce_add_u32, reduce_add_u64, reduce_or_u64
from ...device.sync import Equals32, Equals64, spin
from ...device.warp import ballot
from ...layouts.arith import select
from ...schedule.fused_moe import FC1
from .context import Context
from .layouts.smem_plan import TILE_ROWS
from .layouts.waits import Wait

MASK_BITS = 64
"""Parts of a block's activations that `fc2_arrival` has a bit for; of more it has their number."""


def part_mark(ctx: Context, part: Any) -> Any:
    """What part number `part` of a block's activations adds to `fc2_arrival`: its bit, or one."""
    return Int64(1) << Int64(part) if ctx.config.fc2_parts <= MASK_BITS else Int64(1)


@cute.jit
def signal_part(ctx: Context, arrival: Any, mark: Any):
    """A part, with its scales, is in the pool (release): `mark` goes to the block's `fc2_arrival`."""
    if cutlass.const_expr(ctx.config.fc2_parts <= MASK_BITS):
        reduce_or_u64(arrival, mark, "release", "gpu")
    else:
        reduce_add_u64(arrival, mark, "release", "gpu")


@cute.jit
def wait_tokens(ctx: Context, tile: Any):
    """Until dispatch has written all that belongs to the tile's tokens."""
    count = Equals32(ctx.at("fc1_arrival_count", tile.pool_block), tile.valid_m, "gpu")
    spin(count, ctx.watchdog, Wait.FC1_ARRIVAL, tile.pool_block)


@cute.jit
def wait_operands(ctx: Context, tile: Any):
    """Until the tile's tokens, or for Linear2 the Linear1 outputs of its block, are in the pool, visible to TMA, where they arrive in the
    same launch."""
    if cutlass.const_expr(ctx.operands_arrive):
        if tile.phase == FC1:
            wait_tokens(ctx, tile)
        else:
            parts = ctx.config.fc2_parts
            finished = (1 << parts) - 1 if parts <= MASK_BITS else parts
            arrived = Equals64(ctx.at("fc2_arrival", tile.pool_block), as_signed64(finished), "gpu")
            spin(arrived, ctx.watchdog, Wait.FC2_ARRIVAL, tile.pool_block)
        # Other CTAs wrote the scales through the generic proxy, and TMA reads them through the async proxy: one fence here, in the reader,
        # replaces a fence in every writer.
        fence_async_global()


@cute.jit
def free_rows(ctx: Context, tile: Any, lane: Int32, places: list[Any], valid: list[Any]):
    """A math warp, when it has read what a Linear2 tile needs of the pool: at last the `places` of its results, of `valid` tokens and of
    rows without one.  It comes before the results leave, because a release waits for what was stored, and these go to other GPUs.

    A lane's release says nothing of loads of other lanes that nothing has used.  So it depends on all that was loaded: an address is not 0.
    """
    if cutlass.const_expr(ctx.config.ring_blocks > 0):
        read = reduce(or_, (select(one, place, Int64(1)) for place, one in zip(places, valid, strict=True)))
        if (lane == 0) & (ballot(Int32(read != 0)) != 0):
            reduce_add_u32(ctx.at("fc2_read_count", tile.pool_block), 1, "release", "gpu")


@cute.jit
def wait_rows(ctx: Context, pool_block: Int32):
    """A dispatch warp, before it writes into the rows of a token block."""
    config = ctx.config
    if cutlass.const_expr(config.ring_blocks > 0):
        before = pool_block - config.ring_blocks
        if before >= 0:
            readers = config.fc2_n_blocks * config.epilogue_warps
            count = Equals32(ctx.at("fc2_read_count", before), Int32(readers), "gpu")
            spin(count, ctx.watchdog, Wait.ROWS, pool_block)


def as_signed64(value: int) -> Any:
    """A 64-bit pattern as a traced integer."""
    return Int64(value - (1 << 64) if value >> 63 else value)


def bias_address(ctx: Context, phase: int, expert: Any, row: Any) -> Any:
    """Address of the bias of a weight row, counted in the order of the weights."""
    config, args = ctx.config, ctx.args
    base, tiles = (args.fc1_bias, config.fc1_n_blocks) if phase == FC1 else (args.fc2_bias, config.fc2_n_blocks)
    return base + (Int64(expert) * (tiles * TILE_ROWS) + Int64(row)) * 4


def weighs_bias(ctx: Context, phase: int) -> bool:
    """Whether a token's bias is multiplied with its top-k weight: in Linear2, unless combine applies that."""
    return phase != FC1 and not ctx.config.problem.weigh_results


def weight_of(ctx: Context, row: Any) -> Any:
    """The top-k weight of a pool row, for what Linear2 reads; 1.0 where combine applies it."""
    return 1.0 if ctx.config.problem.weigh_results else load_f32(ctx.at("fc1_topk_weights", row))


def weights_of_pair(ctx: Context, address: Any) -> tuple[Any, ...]:
    """The same of two rows, from the address of the first one's."""
    return (1.0, 1.0) if ctx.config.problem.weigh_results else load_f32x2(address)


def add_bias(ctx: Context, phase: int, sum_: Any, bias: Any, weight: Any) -> Any:
    return fma(bias, weight, sum_) if weighs_bias(ctx, phase) else sum_ + bias
