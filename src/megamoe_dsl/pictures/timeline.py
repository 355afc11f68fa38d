"""A timeline of one launch, from the schedule: when each tile starts if K blocks are all that takes time.

The unit is one K block of a tile, the same for both linears and any number of tokens.
- Counting tokens and exchanging the counts takes `DISPATCH` units on every SM.
- Pull and combine take as long as tiles need to read as many bytes of weights; every SM pulls at once, in the order of the pool.
- A Linear1 tile waits for the tokens of its pool block, a Linear2 tile for all Linear1 tiles of it, combine for the last tile of all.
- A cluster takes the next tiles as soon as it is free.
Loads, epilogues and barriers take no time; other ranks are as far as this one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import zip_longest

from ..kernels.moe.config import MegaMoeConfig
from ..schedule import FC1, Block
from .chart import Bar, BarChart, Lane, Picture
from .schedule import Worker, k_blocks, of_cluster, some_workers, tile_kind, worker_word, workers
from .subject import sample_counts

DISPATCH = 1.0


@dataclass(frozen=True)
class TimedTile:
    """A tile with its start and end, in K blocks."""

    block: Block
    start: float
    end: float


@dataclass(frozen=True)
class PaperLaunch:
    """`tiles[cluster, place]` are a worker's, in order; `combine` is when the last tile has ended."""

    config: MegaMoeConfig
    counts: tuple[int, ...]
    tokens: int
    tiles: dict[tuple[int, int], list[TimedTile]]
    combine: float

    @classmethod
    def of(cls, config: MegaMoeConfig, counts: Sequence[int], tokens: int) -> PaperLaunch:
        """For the tokens of each local expert, and this rank's own tokens."""
        tiles, finished = defaultdict[tuple[int, int], list[TimedTile]](list), defaultdict[int, float](float)
        pulled, free = pull_times(config, counts), [(DISPATCH, cluster) for cluster in range(config.num_clusters)]
        heapify(free)
        for turn in turns(config, counts):
            now, cluster = free[0]
            ends = list[float]()
            for place, block in enumerate(turn):
                ready = pulled if block.phase == FC1 else finished
                start = max(now, ready[block.pool_block])
                ends.append(start + k_blocks(config, block))
                tiles[cluster, place].append(TimedTile(block, start, ends[-1]))
            for block, end in zip(turn, ends, strict=True):
                if block.phase == FC1:
                    finished[block.pool_block] = max(finished[block.pool_block], end)
            heapreplace(free, (max(ends), cluster))
        combine = max((tile.end for some in tiles.values() for tile in some), default=DISPATCH)
        return cls(config, tuple(counts), tokens, dict(tiles), combine)

    def of_worker(self, worker: Worker) -> list[TimedTile]:
        """The tiles of a worker, in order."""
        return self.tiles.get((worker.cluster, worker.place), [])

    def pull_end(self, worker: Worker) -> float:
        """When a worker's first SM has pulled its rows."""
        return DISPATCH + rows_of(self.config, sum(self.counts), worker.sms[0]) * row_cost(self.config)

    def combine_end(self, worker: Worker) -> float:
        """When a worker's first SM has added up its pieces of tokens."""
        problem, pieces = self.config.problem, self.config.smem.combine.pieces
        mine = len(range(worker.sms[0], self.tokens * pieces, self.config.num_sms))
        return self.combine + mine * problem.topk * problem.hidden * 2 / pieces / self.config.smem.weight_bytes


def turns(config: MegaMoeConfig, counts: Sequence[int]) -> Iterator[list[Block]]:
    """What a cluster takes at a time, in the order of the schedule."""
    size = config.blocks_per_fetch
    walks = [of_cluster(config, counts, cluster) for cluster in range(config.num_clusters)]
    in_turns = ([walk[i : i + size] for i in range(0, len(walk), size)] for walk in walks)
    for row in zip_longest(*in_turns):
        yield from (turn for turn in row if turn)


def row_cost(config: MegaMoeConfig) -> float:
    """K blocks in whose time an SM pulls a row of a token."""
    return config.problem.hidden / config.smem.weight_bytes


def rows_of(config: MegaMoeConfig, rows: int, sm: int) -> int:
    """How many of the rows this SM pulls: the dispatch warps of all SMs take them in turn."""
    warps = config.dispatch_warps
    laps, rest = divmod(rows, warps * config.num_sms)
    return warps * laps + min(max(rest - warps * sm, 0), warps)


def pull_times(config: MegaMoeConfig, counts: Sequence[int]) -> dict[int, float]:
    """When a pool block's last row has come."""
    times, rows, block = dict[int, float](), 0, 0
    for count in counts:
        for first in range(0, count, config.block_m):
            last = rows + min(first + config.block_m, count) - 1
            laps = last // (config.dispatch_warps * config.num_sms) + 1
            times[block] = DISPATCH + laps * config.dispatch_warps * row_cost(config)
            block += 1
        rows += count
    return times


LANES = 6


def draw_timeline(config: MegaMoeConfig, tokens: int) -> Picture:
    """Two lanes for each of some SMs: what dispatch warps do, and what works on tiles."""
    launch = PaperLaunch.of(config, sample_counts(config, tokens), tokens)
    shown = some_workers(config, LANES)
    lanes = [lane for worker in shown for lane in _lanes(launch, worker)]
    everyone, word = len(workers(config)), worker_word(config)
    note = (
        f"From the schedule, with a sampled routing of {tokens} tokens a rank: not measured. The unit of time is one K block of a tile; "
        f"pull and combine take as long as reading as many bytes of weights does, counting is drawn as {DISPATCH:.0f} K block, and loads, "
        f"epilogues and barriers take no time. A tile is named by its local expert. {len(shown)} of {everyone} {word} are drawn."
    )
    return Picture(
        "Timeline of one launch", note, (BarChart(tuple(lanes), max(bar.end for lane in lanes for bar in lane.bars), "K blocks"),)
    )


def _lanes(launch: PaperLaunch, worker: Worker) -> tuple[Lane, Lane]:
    dispatch = (Bar(0.0, DISPATCH, "dispatch"), Bar(DISPATCH, launch.pull_end(worker), "pull"))
    bars, now = list[Bar](), 0.0
    for tile in launch.of_worker(worker):
        bars += [Bar(now, tile.start, "wait"), Bar(tile.start, tile.end, tile_kind(tile.block), str(tile.block.expert))]
        now = tile.end
    bars += [Bar(now, launch.combine, "wait"), Bar(launch.combine, launch.combine_end(worker), "combine")]
    return (
        Lane("dispatch", tuple(bar for bar in dispatch if bar.end > bar.start), group=worker.name),
        Lane("tiles", tuple(bar for bar in bars if bar.end > bar.start), group=worker.name),
    )
