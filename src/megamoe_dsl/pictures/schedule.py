"""The schedule: which tiles each worker takes, a pair of CTAs on SM100 and a CTA on SM90."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..kernels.moe.config import MegaMoeConfig
from ..schedule.fused_moe import FC1, Block
from .chart import Bar, BarChart, Lane, Picture
from .subject import sample_counts


@dataclass(frozen=True)
class Worker:
    """CTAs that share a tile; `place` of those that their cluster works on at a time."""

    sms: range
    cluster: int
    place: int

    @property
    def name(self) -> str:
        return f"SM {', '.join(map(str, self.sms))}"


def workers(config: MegaMoeConfig) -> list[Worker]:
    """All workers of a GPU, in the order of their SMs."""
    turn = config.blocks_per_fetch
    size = config.cluster // turn
    return [Worker(range(i * size, (i + 1) * size), i // turn, i % turn) for i in range(config.num_clusters * turn)]


def some_workers(config: MegaMoeConfig, most: int) -> list[Worker]:
    """At most so many, from the first to the last SM."""
    every = workers(config)
    count = min(most, len(every))
    return [every[i] for i in sorted({round(n * (len(every) - 1) / max(1, count - 1)) for n in range(count)})]


def worker_word(config: MegaMoeConfig) -> str:
    """Plural of what a worker is."""
    return "SM pairs" if len(workers(config)[0].sms) > 1 else "SMs"


def in_turn(config: Any, counts: Sequence[int], worker: Worker) -> list[Block]:
    """A worker's tiles, in a configuration of either architecture, if clusters take them in turn: if all tiles take equally long."""
    return list(config.order.blocks(config, counts, worker.cluster))[worker.place :: config.blocks_per_fetch]


LANES = 12
TILES = 16  # of a lane: wide enough for their names


def tile_kind(block: Block) -> str:
    return "Linear1" if block.phase == FC1 else "Linear2"


def k_blocks(config: MegaMoeConfig, block: Block) -> int:
    """Blocks of 128 channels that a tile adds up."""
    return config.fc1_k_blocks if block.phase == FC1 else config.fc2_k_blocks


def draw_schedule(config: MegaMoeConfig, tokens: int) -> Picture:
    """Which tiles some of the workers take, in which order."""
    counts = sample_counts(config, tokens)
    lanes, most = list[Lane](), 0
    for worker in some_workers(config, LANES):
        blocks = in_turn(config, counts, worker)
        most = max(most, len(blocks))
        bars, time = list[Bar](), 0
        for block in blocks[:TILES]:
            end = time + k_blocks(config, block)
            bars.append(Bar(time, end, tile_kind(block), f"{1 + block.phase}:{block.expert}"))
            time = end
        lanes.append(Lane(worker.name, tuple(bars), (str(len(blocks)),)))
    extent = max((lane.bars[-1].end for lane in lanes if lane.bars), default=1.0)
    everyone, word = len(workers(config)), worker_word(config)
    what = "all tiles" if most <= TILES else f"the first {TILES} tiles, of up to {most},"
    whose = f"all {everyone} {word}" if len(lanes) == everyone else f"{len(lanes)} of {everyone} {word}"
    note = (
        f"Linear1 is {config.lookahead} of {config.problem.experts_per_rank} experts ahead of Linear2; routing of {tokens} tokens a "
        f"rank, {what} of {whose}. A tile is named linear:local expert, and is as wide as it has K blocks; waits are not drawn."
    )
    note += " Who is free takes the next tiles at run time: drawn is the order in which they are taken if all take equally long."
    return Picture("Schedule", note, (BarChart(tuple(lanes), extent, "K blocks", ("tiles",)),))
