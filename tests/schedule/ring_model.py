"""A launch on a ring of token blocks, as a machine whose steps come in any order: dispatch warps, clusters that fetch tiles, and rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

from megamoe_dsl.schedule import fused_moe
from megamoe_dsl.schedule.fused_moe import FC1, FC2, Block, FusedMoeOrder, HostTable, RingOrder
from megamoe_dsl.schedule.scheduler import Scheduler


@dataclass(frozen=True)
class Experts:
    """What the order reads of a problem."""

    experts_per_rank: int


@dataclass(frozen=True)
class RingPlan:
    """What the order reads of a configuration."""

    experts: int
    ring_blocks: int
    window: int
    lookahead: int
    block_m: int = 4
    fc1_n_blocks: int = 2
    fc2_n_blocks: int = 2
    group_m: int = 3
    num_clusters: int = 2
    blocks_per_fetch: int = 1

    @property
    def problem(self) -> Experts:
        return Experts(self.experts)


def sequence(plan: RingPlan, counts: Sequence[int], order: type[FusedMoeOrder] = RingOrder, run: int = 1) -> list[Block]:
    """All blocks of a launch in the order of their numbers; so many fetches of a phase follow one another."""
    with patch.object(fused_moe, "INTERLEAVE", run):
        return list(Scheduler.blocks(order(plan, HostTable.of(counts, plan.block_m))))


class Stuck(Exception):
    """Nobody can do anything, and not all is done."""


class Overwritten(Exception):
    """Rows were given to a token block while another one was in use."""


@dataclass
class Launch:
    """Tiles are `blocks`, taken in turn by whichever cluster is free; every warp of dispatch has every `warps`-th token.

    freed  whether the rows of a place may be used again, from how many of its Linear2 tiles are done
    """

    plan: RingPlan
    counts: Sequence[int]
    blocks: Sequence[Block]
    warps: int
    freed: Callable[[RingPlan, int], bool] = lambda plan, done: done == plan.fc2_n_blocks
    taken: int = 0
    arrived: Counter[int] = field(default_factory=Counter)
    done: Counter[tuple[int, int]] = field(default_factory=Counter)
    holder: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = HostTable.of(self.counts, self.plan.block_m)
        self.places = [table.first_block(e) + i // self.plan.block_m for e, n in enumerate(self.counts) for i in range(n)]
        self.valid = Counter(self.places)
        self.next_token = list(range(self.warps))
        self.busy: list[Block | None] = [None] * self.plan.num_clusters

    def pull(self, warp: int) -> Callable[[], None] | None:
        """The warp's next token into its rows, if they are free."""
        if self.next_token[warp] >= len(self.places):
            return None
        place, ring = self.places[self.next_token[warp]], self.plan.ring_blocks
        if place >= ring and not self.freed(self.plan, self.done[FC2, place - ring]):
            return None

        def move() -> None:
            before = self.holder.get(place % ring, place)
            if before != place and self.done[FC2, before] < self.plan.fc2_n_blocks:
                raise Overwritten(f"place {place} takes the rows of {before}")
            self.holder[place % ring] = place
            self.arrived[place] += 1
            self.next_token[warp] += self.warps

        return move

    def work(self, cluster: int) -> Callable[[], None] | None:
        """The cluster fetches a tile, or finishes the one that it has, if its operands are there."""
        block = self.busy[cluster]
        if block is None:
            if self.taken == len(self.blocks):
                return None

            def fetch() -> None:
                self.busy[cluster] = self.blocks[self.taken]
                self.taken += 1

            return fetch
        place = block.pool_block
        ready = self.arrived[place] == self.valid[place] if block.phase == FC1 else self.done[FC1, place] == self.plan.fc1_n_blocks
        if not ready:
            return None

        def finish() -> None:
            if self.holder[place % self.plan.ring_blocks] != place:
                raise Overwritten(f"the rows of {place} are another's")
            self.done[block.phase, place] += 1
            self.busy[cluster] = None

        return finish

    def actions(self) -> Iterator[Callable[[], None]]:
        """What can be done next."""
        for every, of in ((self.pull, self.warps), (self.work, self.plan.num_clusters)):
            yield from filter(None, map(every, range(of)))

    def run(self, seed: int) -> None:
        """To the end, in a random order.  Raises `Stuck` and `Overwritten`."""
        rng = random.Random(seed)
        while possible := list(self.actions()):
            rng.choice(possible)()
        if self.taken < len(self.blocks) or any(self.busy) or sum(self.arrived.values()) < len(self.places):
            raise Stuck(f"{self.taken} of {len(self.blocks)} tiles, {sum(self.arrived.values())} of {len(self.places)} tokens")
