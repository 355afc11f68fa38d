"""Tiles in a kernel: the scheduler's walk over them (schedule/scheduler.py), on traced integers, and a warp's loop over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import cache, partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..device.memory import load_shared_u32, store_shared_v2
from ..device.ring import Stage, TileQueue
from ..device.stamps import begin, stamp
from ..device.warp import ClusterPlace, inclusive_sum, shuffle
from ..layouts.arith import div
from ..layouts.records import Activity, Role
from ..schedule.scheduler import Scheduler
from .cta import CtaContext


@dataclass(frozen=True)
class Walk(Scheduler):
    """A scheduler whose order is a kernel's: a frozen dataclass that tells the DSL which of its fields are compile-time."""

    stride: cutlass.Constexpr[int]


@cache
def traced(order: type[Any]) -> Any:
    """The tile order as a kernel uses it: a subclass that declares the configuration compile-time for the DSL."""
    return make_dataclass(f"Traced{order.__name__}", [("config", cutlass.Constexpr[Any])], bases=(order,), frozen=True)  # type: ignore[misc]


@cute.jit
def fill_shared_table(entry: Callable[..., Any], count: cutlass.Constexpr[int], tokens_of: Callable[..., Any], places: Callable[..., Any]):
    """A warp writes the entries of `count` experts and one more; lane l has experts l, l + 32, ...  An entry holds the expert's tokens (0
    past the last expert) and the places of all experts before it."""
    lane, first = cute.arch.lane_idx(), Int32(0)
    for base in cutlass.range_constexpr(0, count + 1, 32):
        expert = lane + base
        tokens = tokens_of(expert)
        taken = places(tokens)
        upto = inclusive_sum(taken)
        if expert <= count:
            store_shared_v2(entry(expert), tokens, first + upto - taken)
        first = first + shuffle(upto, 31)


@cute.jit
def advance_to_valid(walk: Walk) -> Walk:
    """As `Scheduler.advance_to_valid`, on traced integers."""
    while walk.invalid():
        walk = walk.advance()
    return walk


@cute.jit
def next_block(walk: Walk) -> Walk:
    return advance_to_valid(walk.skip())


def first_number(sm: Int32, config: Any) -> Int32:
    """Number of the first block of the cluster whose first CTA is `sm`; later ones are fetched."""
    return sm if config.blocks_per_fetch == config.cluster else div(sm, config.cluster) * config.blocks_per_fetch


@dataclass(frozen=True)
class SharedTable:
    """Table in SMEM: (tokens, first pool block) of each local expert, or (rows, first row) of each group, then one empty entry."""

    address: Int32

    def tokens(self, expert: Any) -> Any:
        return load_shared_u32(self.address + expert * 8)

    def first_block(self, expert: Any) -> Any:
        return load_shared_u32(self.address + expert * 8 + 4)


class TileContext(CtaContext):
    """Base of the contexts of kernels whose warps work on tiles of a queue.

    next_tile(queue)   a warp's next tile, and the place of the one after it
    k_blocks_of(tile)  K blocks of a tile
    detail(tile)       what a stamp says of it
    """

    next_tile: Any
    k_blocks_of: Any
    detail: Any
    cta_rank: Any  # this CTA's place in the cluster
    own_pair: Any = 3  # mask of the CTAs of this one's pair, where there are pairs

    @property
    def place(self) -> ClusterPlace:
        return ClusterPlace(self.cta_rank, self.config.fetchers)

    @property
    def first_stage(self) -> Any:
        """The first stage of the ring of operands."""
        return Stage.first(self.config.smem.region, self.smem, self.config.num_stages, self.config.fetchers)

    @property
    def first_tile(self) -> TileQueue:
        region = self.config.smem.region
        return TileQueue.first(region, self.smem, region["work_tiles"].field.shape[0], self.config.cluster)

    def take_first(self, role: Role | None) -> tuple[Any, TileQueue]:
        """The first tile, and the queue after it; begins the stamps of `role`, unless that is None."""
        if role is not None:
            self.begin(role)
        return self.next_tile(self.first_tile)

    def read_end(self, tile: Any, queue: TileQueue) -> None:
        """Reads what the scheduler publishes after the warp's last tile; by default nothing."""

    @property
    def stamped(self) -> Any:
        """The context that holds the trace buffer."""
        return self

    def begin(self, role: Role) -> None:
        begin(self.stamped, role)

    def stamp(self, activity: Activity, tile: Any) -> None:
        """Stamps the activity that took the warp's time since its last stamp, with the tile."""
        if self.stamped.config.trace:
            stamp(self.stamped, activity, self.detail(tile))


Work = Callable[[Any, Any, Any], Any]  # (context, tile, state) to the state of the next tile


@cute.jit
def each_tile(ctx: TileContext, role: cutlass.Constexpr[Role | None], state: Any, work: Work):
    """A warp's role: runs `work` on every tile; `state` (the first stage, say) is passed from tile to tile."""
    tile, tiles = ctx.take_first(role)
    while tile.valid():
        state = work(ctx, tile, state)
        tile, tiles = ctx.next_tile(tiles)
    ctx.read_end(tile, tiles)


@cute.jit
def load_tile(ctx: TileContext, tile: Any, stage: Any, load: Work, waits: Callable[[Any, Any], None] | None = None):
    """A loader's work on a tile: `waits` for its inputs, then `load` fills its stages.  Returns the next stage."""
    if cutlass.const_expr(waits is not None):
        waits(ctx, tile)  # type: ignore[misc]
        ctx.stamp(Activity.WAIT_TOKENS, tile)
    stage = load(ctx, tile, stage)
    ctx.stamp(Activity.LOAD, tile)
    return stage


def load_tokens(ctx: TileContext, stage: Any, load: Work, waits: Callable[[Any, Any], None]) -> None:
    each_tile(ctx, Role.TOKEN_LOADER, stage, partial(load_tile, load=load, waits=waits))


def load_weights(ctx: TileContext, stage: Any, load: Work) -> None:
    each_tile(ctx, Role.WEIGHT_LOADER, stage, partial(load_tile, load=load))
