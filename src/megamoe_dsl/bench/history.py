"""What a layer that is in use has in its buffers before a measurement begins.

Rows of a tile beyond its tokens are multiplied too.  In a new buffer they are zeros, which cost a tensor core less energy than numbers do;
later they hold tokens of earlier launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..cases import TokenInputs, random_inputs
from ..problem import Problem
from .timing import synchronize

BATCHES = 8
FIRST_SEED = 1001


def run_earlier_batches(
    problem: Problem,
    rank: int,
    tokens: int,
    load: Callable[[TokenInputs], None],
    launches: Iterable[Callable[[], None]],
    batches: int = BATCHES,
) -> None:
    """Loads batches of `tokens` per rank, each with a routing of its own, and calls every one of `launches` on each; all ranks together,
    once all are here: setting up may take one of them longer than a kernel waits."""
    synchronize()
    for seed in range(FIRST_SEED, FIRST_SEED + batches):
        load(random_inputs(problem, rank, tokens, seed, "cuda"))
        for launch in launches:
            launch()
