"""Barriers over all CTAs of all ranks (article 3.3.1 and 4.1.5).

Every CTA of a rank adds itself to `grid_arrivals`; SM 0 waits for all of them and signals every rank through `rank_signal`; every CTA that
goes on watches its own rank's signal.  Counters only grow: the targets follow from the number of launches.

A kernel's context (`RankContext`) has the addresses.  Its symmetric buffer has these fields, zero before the first launch:

| field         | what it holds |
|---|---|
| launch_epoch  | u32: launches so far, which the kernel counts when all of its CTAs are past its last barrier |
| grid_arrivals | u32 [barriers]: CTAs of this rank that have arrived, over all launches |
| rank_signal   | u32 [barriers]: ranks that have arrived, over all launches |

A group of warps takes part together.  `threads` synchronises it before thread 0 arrives and after thread 0 has seen the signal, so what
any thread of the group wrote before is visible to all threads of all groups after.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..device.memory import load_u32, reduce_add_u32
from ..device.sync import Equals32, Watchdog, spin
from ..device.warp import named_barrier


class RankContext(Protocol):
    """What a barrier needs to know of a kernel."""

    @property
    def sm(self) -> Any:
        """The CTA's index in the grid."""
        ...

    @property
    def num_sms(self) -> int:
        """CTAs of the grid."""
        ...

    @property
    def num_ranks(self) -> int:
        """Ranks that meet."""
        ...

    @property
    def watchdog(self) -> Watchdog:
        """Of the barrier's waits."""
        ...

    @property
    def grid_wait(self) -> IntEnum:
        """What the watchdog records of the wait for this rank's CTAs."""
        ...

    @property
    def rank_wait(self) -> IntEnum:
        """What the watchdog records of the wait for the other ranks."""
        ...

    def at(self, name: str, *index: Any) -> Any:
        """Address of an element of this rank's symmetric buffer."""
        ...

    def peer(self, rank: Any) -> Any:
        """Base address of a rank's symmetric buffer."""
        ...

    def at_peer(self, base: Any, name: str, *index: Any) -> Any:
        """Address of an element of the symmetric buffer that starts at `base`."""
        ...


@dataclass(frozen=True)
class Group:
    """The warps of a CTA that use a rank barrier: `size` threads on named barrier `name`; `thread` is the index within them."""

    name: cutlass.Constexpr[int]
    size: cutlass.Constexpr[int]
    thread: Int32

    def sync(self) -> None:
        """All threads of the group."""
        named_barrier(self.name, self.size)


def next_epoch(ctx: RankContext) -> Any:
    """Number of this launch, from 1.  Read before the CTA arrives at the last barrier: after it the next is stored."""
    return load_u32(ctx.at("launch_epoch")) + 1


@cute.jit
def arrive(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum]):
    """This CTA has reached the barrier."""
    group.sync()
    if group.thread == 0:
        reduce_add_u32(ctx.at("grid_arrivals", int(which)), 1, "release", "gpu")


@cute.jit
def arrive_no_wait(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum]):
    """In place of `arrive`, when nobody waits at the barrier in this launch: its counter grows all the same."""
    if group.thread == 0:
        reduce_add_u32(ctx.at("grid_arrivals", int(which)), 1, "relaxed", "gpu")


@cute.jit
def collect(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum], epoch: Int32):
    """SM 0: until all CTAs of this rank have arrived."""
    if group.thread == 0:
        target = epoch * ctx.num_sms
        spin(Equals32(ctx.at("grid_arrivals", int(which)), target, "gpu"), ctx.watchdog, ctx.grid_wait, Int32(int(which)))
    group.sync()


@cute.jit
def signal(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum]):
    """SM 0: this rank has arrived, said to every rank.  Covers what the group wrote before its last `sync`."""
    if group.thread < ctx.num_ranks:
        peer = ctx.peer(group.thread)
        reduce_add_u32(ctx.at_peer(peer, "rank_signal", int(which)), 1, "release", "sys")


@cute.jit
def await_ranks(ctx: RankContext, group: Group, which: cutlass.Constexpr[IntEnum], epoch: Int32):
    """Until every rank has arrived."""
    if group.thread == 0:
        target = epoch * ctx.num_ranks
        spin(Equals32(ctx.at("rank_signal", int(which)), target, "sys"), ctx.watchdog, ctx.rank_wait, Int32(int(which)))
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
