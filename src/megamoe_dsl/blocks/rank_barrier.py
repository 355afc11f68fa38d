"""Barriers over all CTAs of all ranks (article 3.3.1 and 4.1.5).

Every CTA of a rank adds one to `grid_arrivals`.  SM 0 waits until all CTAs have done so, and then adds one to `rank_signal` of every rank.
Every CTA that waits polls `rank_signal` of its own rank.  Counters, fields of the symmetric buffer that are zero before the first launch,
only grow: their targets follow from `launch_epoch`, u32, launches so far, which the kernel counts past its last barrier.

A group of warps takes part together, synchronized before its thread 0 arrives and after thread 0 has seen the signal: what any thread of a
group wrote before the barrier is visible to all threads of all groups after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..device.memory import load_constant_u64, load_u32, reduce_add_u32
from ..device.sync import Equals32, Watchdog, spin
from ..device.warp import named_barrier
from .cta import CtaContext


class RankContext(CtaContext):
    """What a barrier needs to know of a kernel: the base of contexts with run-time arguments `args` and the CTA's index `sm` in the grid.

    waits   what the watchdog can report: GRID of SM 0 that waits for the other CTAs, RANK of a CTA that waits for the other ranks
    region  the layout of a rank's symmetric buffer
    """

    waits: ClassVar[Any]
    args: Any
    sm: Any
    region: Any

    @property
    def num_sms(self) -> int:
        return int(self.config.num_sms)

    @property
    def num_ranks(self) -> int:
        return int(self.config.problem.num_ranks)

    @property
    def watchdog(self) -> Watchdog:
        return Watchdog(self.args.watchdog, self.args.watchdog_ns, self.args.rank)

    def peer(self, rank: Any) -> Any:
        return load_constant_u64(self.args.peers + Int64(rank) * 8)

    def at(self, name: str, *index: Any) -> Any:
        return self.at_peer(self.args.sym, name, *index)

    def at_peer(self, base: Any, name: str, *index: Any) -> Any:
        return self.region.address(base, name, *index)


@dataclass(frozen=True)
class Group:
    """The warps of a CTA that use a rank barrier: `size` threads on named barrier `name`; `thread` is the index within them."""

    name: cutlass.Constexpr[int]
    size: cutlass.Constexpr[int]
    thread: Int32

    def sync(self) -> None:
        named_barrier(self.name, self.size)


def next_epoch(ctx: RankContext) -> Any:
    """Number of this launch, from 1.  A CTA reads it before it arrives at the last barrier, after which SM 0 stores the next launch's."""
    return load_u32(ctx.at("launch_epoch")) + 1


@cute.jit
def arrive(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum]):
    """This CTA has reached the barrier."""
    group.sync()
    if group.thread == 0:
        reduce_add_u32(ctx.at("grid_arrivals", int(which)), 1, "release", "gpu")


@cute.jit
def arrive_no_wait(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum]):
    """In place of `arrive` when nobody waits at the barrier in this launch.  Its counter must grow all the same, because the targets of
    later launches count on it."""
    if group.thread == 0:
        reduce_add_u32(ctx.at("grid_arrivals", int(which)), 1, "relaxed", "gpu")


@cute.jit
def collect(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum], epoch: Int32):
    """SM 0 waits until all CTAs of this rank have arrived."""
    if group.thread == 0:
        target = epoch * ctx.num_sms
        spin(Equals32(ctx.at("grid_arrivals", int(which)), target, "gpu"), ctx.watchdog, ctx.waits.GRID, Int32(int(which)))
    group.sync()


@cute.jit
def signal(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum]):
    """SM 0 tells every rank that this rank has arrived.  A release: it covers what the group wrote before its last `sync`."""
    if group.thread < ctx.num_ranks:
        peer = ctx.peer(group.thread)
        reduce_add_u32(ctx.at_peer(peer, "rank_signal", int(which)), 1, "release", "sys")


@cute.jit
def await_ranks(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum], epoch: Int32, until: cutlass.Constexpr[Any] = Equals32):
    """Waits until every rank has arrived; `until` says whether a rank may be there again already."""
    if group.thread == 0:
        target = epoch * ctx.num_ranks
        spin(until(ctx.at("rank_signal", int(which)), target, "sys"), ctx.watchdog, ctx.waits.RANK, Int32(int(which)))
    group.sync()


@cute.jit
def rank_barrier(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum]):
    """The whole barrier, for all CTAs."""
    epoch = next_epoch(ctx)
    arrive(ctx, group, which)
    if ctx.sm == 0:
        collect(ctx, group, which, epoch)
        signal(ctx, group, which)
    await_ranks(ctx, group, which, epoch)
