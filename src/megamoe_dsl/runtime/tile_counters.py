"""Counters of launches, from which tiles are scheduled at run time among others: those of each stream of a device, so that no two launches
at once share any."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import torch
from cuda.bindings import driver

from ..kernels.decode.config import LINE, MOST_COUNTERS
from ..problem import ProblemError
from .cuda_kernel import current_stream

COUNTERS, DECODING_STREAMS = 1 << 16, 1 << 11
EACH, BYTES = 3, 4
"""Words of a stream: one for launches that deal tiles when those before them have ended, two for those that do before."""


def outside_pools(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor that is kept.  A thread of its own makes it: what this thread allocates may be memory of a tree of CUDA graphs, all of which
    torch takes back."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


class TileCounters:
    """Of one device: so many `words` for each of up to `most` streams.  They are zero, and every launch leaves them so.  Launches that a
    graph captures on one stream share words of their own, for the graph may run beside the stream it was captured on."""

    def __init__(self, device: torch.device, words: int = EACH, most: int = COUNTERS) -> None:
        self.memory = outside_pools(partial(torch.zeros, most, words, dtype=torch.int32, device=device))
        self._index, self._first = self.memory.get_device(), int(self.memory.data_ptr())
        self._slots: dict[tuple[int, int], int] = {}
        self._turns: dict[int, int] = {}
        torch.cuda.synchronize(device)

    def address(self) -> int:
        """Address of the counter for a launch on torch's current stream.  Raises `ProblemError` when all are taken."""
        return self.of(current_stream(self._index), torch.cuda.is_current_stream_capturing())

    def of(self, stream: int, capturing: bool) -> int:
        """The same where it is known which stream that is, and whether a graph captures it."""
        capture = 0
        if capturing:
            _, _, capture, *_ = driver.cuStreamGetCaptureInfo(stream)
        key = (stream, int(capture))
        if key not in self._slots:
            most = len(self.memory)
            if len(self._slots) == most:
                raise ProblemError("streams and captured graphs", most + 1, f"at most {most} with tiles scheduled at run time")
            self._slots[key] = len(self._slots)
        return self._first + self.memory.stride(0) * BYTES * self._slots[key]

    def early(self, counter: int) -> int:
        """Of the next launch that deals tiles before the one before it has ended, on the stream with this counter: not the one before's,
        whichever that was.  By then those before that one have ended."""
        turn = self._turns[counter] = EACH - self._turns.get(counter, EACH - 1)
        return counter + turn * BYTES


@lru_cache
def tile_counters(device: torch.device) -> TileCounters:
    """Those of a device; made outside of a capture, when its first kernel is loaded."""
    return TileCounters(device)


@lru_cache
def decode_counters(device: torch.device) -> TileCounters:
    """Those of layers of a few tokens, which count more than tiles."""
    return TileCounters(device, (LINE + 2 * MOST_COUNTERS) // BYTES, DECODING_STREAMS)
