"""Barriers over all CTAs of all ranks (article 3.3.1 and 4.1.5).

Every CTA of a rank adds itself to `grid_arrivals`; SM 0 waits for all of them and signals every rank through `rank_signal`; every CTA that
goes on watches its own rank's signal.  Counters only grow: the targets follow from the number of launches
(layouts/workspace.py).

A group of warps takes part together.  `threads` synchronises it before thread 0 arrives and after thread 0 has seen the signal, so what
any thread of the group wrote before is visible to all threads of all groups after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device.memory import load_u32, reduce_add_u32
from ...device.sync import Equals32, spin
from ...device.warp import named_barrier
from .context import Context
from .layouts.watchdog import Wait
from .layouts.workspace import RankBarrier


@dataclass(frozen=True)
class Group:
    """The warps of a CTA that use a rank barrier: `size` threads on named barrier `name`; `thread` is the index within them."""

    name: cutlass.Constexpr[int]
    size: cutlass.Constexpr[int]
    thread: Int32

    def sync(self) -> None:
        named_barrier(self.name, self.size)


def next_epoch(ctx: Context) -> Any:
    """Number of this launch, from 1.  Read before the CTA arrives at BEFORE_COMBINE: after it SM 0 stores the next."""
    return load_u32(ctx.at("launch_epoch")) + 1


@cute.jit
def arrive(ctx: Context, group: Group, which: cutlass.Constexpr[RankBarrier]):
    """This CTA has reached the barrier."""
    group.sync()
    if group.thread == 0:
        reduce_add_u32(ctx.at("grid_arrivals", int(which)), 1, "release", "gpu")


@cute.jit
def arrive_no_wait(ctx: Context, group: Group, which: cutlass.Constexpr[RankBarrier]):
    """In place of `arrive`, when nobody waits at the barrier in this launch: its counter grows all the same."""
    if group.thread == 0:
        reduce_add_u32(ctx.at("grid_arrivals", int(which)), 1, "relaxed", "gpu")


@cute.jit
def collect(ctx: Context, group: Group, which: cutlass.Constexpr[RankBarrier], epoch: Int32):
    """SM 0: until all CTAs of this rank have arrived."""
    if group.thread == 0:
        target = epoch * ctx.config.num_sms
        spin(Equals32(ctx.at("grid_arrivals", int(which)), target, "gpu"), ctx.watchdog, Wait.GRID, Int32(int(which)))
    group.sync()


@cute.jit
def signal(ctx: Context, group: Group, which: cutlass.Constexpr[RankBarrier]):
    """SM 0: this rank has arrived, said to every rank.  Covers what the group wrote before its last `sync`."""
    if group.thread < ctx.config.problem.num_ranks:
        peer = ctx.peer(group.thread)
        reduce_add_u32(ctx.at_peer(peer, "rank_signal", int(which)), 1, "release", "sys")


@cute.jit
def await_ranks(ctx: Context, group: Group, which: cutlass.Constexpr[RankBarrier], epoch: Int32):
    """Until every rank has arrived."""
    if group.thread == 0:
        target = epoch * ctx.config.problem.num_ranks
        spin(Equals32(ctx.at("rank_signal", int(which)), target, "sys"), ctx.watchdog, Wait.RANK, Int32(int(which)))
    group.sync()


@cute.jit
def rank_barrier(ctx: Context, group: Group, which: cutlass.Constexpr[RankBarrier]):
    """The whole barrier, for all CTAs."""
    epoch = next_epoch(ctx)
    arrive(ctx, group, which)
    if ctx.sm == 0:
        collect(ctx, group, which, epoch)
        signal(ctx, group, which)
    await_ranks(ctx, group, which, epoch)
