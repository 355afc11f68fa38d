"""What works on one tile at a time: a pair of CTAs on SM100, a CTA on SM90."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..kernels.moe.config import MegaMoeConfig
from ..schedule import Block


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
    """All of a GPU."""
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


def of_cluster(config: Any, counts: Sequence[int], cluster: int) -> list[Block]:
    """A cluster's tiles if clusters take them in turn, for a configuration of either architecture."""
    return list(config.order.blocks(config, counts, cluster))


def in_turn(config: MegaMoeConfig, counts: Sequence[int], worker: Worker) -> list[Block]:
    """A worker's tiles if clusters take them in turn, as they do if all tiles take equally long."""
    return of_cluster(config, counts, worker.cluster)[worker.place :: config.blocks_per_fetch]
