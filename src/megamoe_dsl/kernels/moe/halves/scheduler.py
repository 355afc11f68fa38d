"""Who does what when it is done with what it has: tiles from one counter, for the loaders and math warps of a CTA or of a pair of them, and
tasks from another, for each communication warp.  Tasks that go over received rows have them in groups of 32, a lane each, through which a
warp goes in ascending order.  Neither waits for the other, so that a CTA has a tile and tasks at the same time.

| role             | waits           | signals        |
|---|---|---|
| schedule_tiles   | work_tile_empty | work_tile_full |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.gemm.context import GemmContext
from ....blocks.gemm.tile_scheduler import walk_tiles
from ....blocks.rank_barrier import Group, arrive, await_ranks, collect, signal
from ....blocks.tiles import fill_shared_table
from ....device.memory import load_u32, store_u32
from ....device.ring import fetch_numbers
from ....device.warp import sync_warp
from ....layouts.arith import ceil_div, minimum
from .context import EpContext, EpGemm
from .layouts.symmetric import EpBarrier, padded_rows


@cute.jit
def schedule_tiles(gemm: EpGemm):
    """Runs in the scheduler warp of the first CTA: makes the table of experts, then hands out tiles."""
    if gemm.cta_rank == 0:
        fill_table(gemm.ep, gemm)
        # Read here: kept from the start of the kernel it would take a register of every role.
        walk_tiles(replace(gemm, sm=gemm.ep.sm))


@cute.jit
def received(ctx: EpContext, expert: Int32):
    """Rows of an expert; 0 past the last expert."""
    rows = Int32(0)
    if expert < ctx.config.problem.experts_per_rank:
        rows = load_u32(ctx.at("expert_rows", expert))
    return rows


@cute.jit
def fill_table(ctx: EpContext, gemm: GemmContext):
    """(rows, first row) of each local expert, and an entry without rows."""
    fill_shared_table(partial(gemm.shared, "group_table"), ctx.config.problem.experts_per_rank, partial(received, ctx), padded_rows)
    sync_warp()


def next_task(ctx: EpContext) -> Any:
    """A communication warp: the number of its next task, which nobody else gets; `end_launch` sets the counter back."""
    return fetch_numbers(ctx.at("task_counter"), 1)


LANES = 32


@dataclass(frozen=True)
class RowGroups:
    """Those of an expert: it has `rows` from row `first` on, and its first group has this number."""

    expert: Int32
    first: Int32
    rows: Int32
    number: Int32

    @property
    def behind(self) -> Any:
        return self.number + ceil_div(self.rows, LANES)

    def row(self, number: Any) -> Any:
        return self.first + (number - self.number) * LANES

    def count(self, number: Any) -> Any:
        return minimum(self.rows - (number - self.number) * LANES, LANES)


def rows_of(ctx: EpContext, expert: Any) -> Any:
    return load_u32(ctx.at("expert_rows", expert))


def first_groups(ctx: EpContext) -> RowGroups:
    return RowGroups(Int32(0), Int32(0), rows_of(ctx, 0), Int32(0))


@cute.jit
def advance_to(ctx: EpContext, groups: RowGroups, number: Int32) -> RowGroups:
    """The expert, this one or a later one, that has the group with this number; past the last expert if there is none."""
    local = ctx.config.problem.experts_per_rank
    while (groups.expert < local) & (number >= groups.behind):
        rows = rows_of(ctx, minimum(groups.expert + 1, local - 1))
        groups = RowGroups(groups.expert + 1, groups.first + padded_rows(groups.rows), rows, groups.behind)
    return groups


@cute.jit
def end_launch(ctx: EpContext, group: Group):
    """All communication warps, when this CTA has read what it needs of other ranks: signals and waits READ, after which nobody reads this
    rank's memory or writes it, so its owner may write it.  SM 0 alone waits for the other ranks, and counts the launch."""
    arrive(ctx, group, EpBarrier.READ)
    if ctx.sm == 0:
        collect(ctx, group, EpBarrier.READ, ctx.epoch + 1)
        if group.thread == 0:
            store_u32(ctx.at("task_counter"), 0)
        signal(ctx, group, EpBarrier.READ)
        await_ranks(ctx, group, EpBarrier.READ, ctx.epoch + 1)
        if group.thread == 0:
            store_u32(ctx.at("launch_epoch"), ctx.epoch + 1)


@cute.jit
def clear_counters(ctx: EpContext, group: Group, name: cutlass.Constexpr[str], count: cutlass.Constexpr[int]):
    """The first `count` of the next launch, by all communication warps."""
    for index in cutlass.range(ctx.sm * group.size + group.thread, count, ctx.num_sms * group.size, unroll=1):
        store_u32(ctx.at(name, 1 - (ctx.epoch & 1), index), 0)
