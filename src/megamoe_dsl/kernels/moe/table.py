"""The per-expert table of a CTA, and the scheduler warp that fills it.

A walk over the blocks needs, per local expert, the tokens received and the first pool block.  One warp per CTA waits for the counts,
scans them and publishes the table in SMEM once; the article's kernel polls and scans in every warp.  The scheduler warp alone then walks,
over the numbers that it fetches (tile_scheduler.py).

scheduler warp   waits: expert_recv_count_sum of all local experts (watchdog; acquires what every rank's dispatch wrote before)
                 signals: counts barrier, once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...blocks.walk import Walk, advance_to_valid
from ...device.mbarrier import arrive, wait
from ...device.memory import load_shared_u32, load_u64, store_shared_v2
from ...device.sync import HighWordGrewBy, spin
from ...device.warp import inclusive_sum, shuffle, sync_warp
from ...layouts.arith import ceil_div, div
from ...schedule.fused_moe import FusedMoeOrder, FusedMoePlan, RingOrder, RingPlan
from ...schedule.scheduler import Order
from .context import Context
from .layouts.watchdog import Wait


@dataclass(frozen=True)
class SharedTable:
    """An expert table in SMEM: (tokens, first pool block) per local expert, then an entry with no tokens."""

    address: Int32

    def tokens(self, expert: Any) -> Any:
        """Tokens that a local expert received."""
        return load_shared_u32(self.address + expert * 8)

    def first_block(self, expert: Any) -> Any:
        """Pool block that a local expert's tokens start at."""
        return load_shared_u32(self.address + expert * 8 + 4)


@dataclass(frozen=True)
class TracedOrder(FusedMoeOrder):
    """The order in a kernel: the DSL is told which fields are compile-time."""

    config: cutlass.Constexpr[FusedMoePlan]
    table: SharedTable


@dataclass(frozen=True)
class TracedRingOrder(RingOrder):
    """The same on a ring."""

    config: cutlass.Constexpr[RingPlan]
    table: SharedTable


@cute.jit
def fill_table(ctx: Context):
    """The scheduler warp: lane l handles experts l, l + 32, ..."""
    local = ctx.config.problem.experts_per_rank
    lane = cute.arch.lane_idx()
    first = Int32(0)  # pool blocks of all experts before this round of 32
    for base in cutlass.range_constexpr(0, local + 1, 32):
        expert = lane + base
        tokens = Int32(0)
        if expert < local:
            seen = load_u64(ctx.at("expert_counts_seen", expert))
            counter = HighWordGrewBy(ctx.at("expert_recv_count_sum", expert), seen, Int32(ctx.config.problem.num_ranks))
            tokens = Int32(spin(counter, ctx.watchdog, Wait.COUNTS, expert))
        sync_warp()
        blocks = ceil_div(tokens, ctx.config.block_m)
        upto = inclusive_sum(blocks)
        if expert <= local:
            store_shared_v2(ctx.shared("expert_table", expert), tokens, first + upto - blocks)
        first = first + shuffle(upto, 31)
    # Every lane arrives, after it has written its own entries.  Then no order between lanes is needed, and tools that follow single threads
    # (compute-sanitizer) see that every entry is written before it is read.
    arrive(ctx.barrier("counts"))


@cute.jit
def start_walk(ctx: Context, kind: Callable[..., Order] = TracedOrder) -> Walk:
    """Waits for the table.  Returns a walk that begins with this cluster's first fetch.  `kind` is the order of blocks, made of the
    configuration and the table."""
    config = ctx.config
    wait(ctx.barrier("counts"), Int32(0))
    number = div(ctx.sm, config.cluster) * config.blocks_per_fetch
    order = kind(config, SharedTable(ctx.shared("expert_table")))
    return advance_to_valid(Walk.start(order, number, config.num_clusters * config.blocks_per_fetch, Int32))
