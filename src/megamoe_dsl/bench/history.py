"""What a layer that is in use has in its buffers before a measurement begins.

Rows of a tile beyond its tokens are multiplied too.  In a new buffer they are zeros, which cost a tensor core less energy than numbers do;
later they hold tokens of earlier launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..cases import TokenInputs
from .timing import synchronize

BATCHES = 8
FIRST_SEED = 1001


def run_earlier_batches(
    draw: Callable[[int], TokenInputs], load: Callable[[TokenInputs], None], launches: Iterable[Callable[[], None]], batches: int = BATCHES
) -> None:
    """Loads what `draw` gives for the seed of a batch, and calls every one of `launches` on it, batch by batch; all ranks together, once
    all are here: setting up may take one of them longer than a kernel waits."""
    synchronize()
    for seed in range(FIRST_SEED, FIRST_SEED + batches):
        load(draw(seed))
        for launch in launches:
            launch()
