"""Memory per stream, so that concurrent launches share none: counters of dynamic tile schedulers, and intermediate rows of decode."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import torch
from cuda.bindings import driver

from ..kernels.decode.config import ABSENT, LINE
from ..problem import ProblemError
from .cuda_kernel import current_stream

COUNTERS = 1 << 16
EACH, BYTES = 3, 4
"""Words of a stream: one for launches that schedule after the previous launch ends, two for launches that schedule before (PDL)."""


def captured_stream(stream: int, capturing: bool) -> tuple[int, int]:
    """Key of a stream and of its capture, if any: a graph may run at the same time as the stream that captured it."""
    return stream, int(driver.cuStreamGetCaptureInfo(stream)[2]) if capturing else 0


def outside_pools(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A long-lived tensor, made by a new thread: this thread may allocate from the pool of a CUDA graph tree, which torch frees."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


class TileCounters:
    """Words of one device for up to `most` streams, zero before and after every launch."""

    def __init__(self, device: torch.device, most: int = COUNTERS) -> None:
        self.memory = outside_pools(partial(torch.zeros, most, EACH, dtype=torch.int32, device=device))
        self._index, self._first = self.memory.get_device(), int(self.memory.data_ptr())
        self._slots: dict[tuple[int, int], int] = {}
        self._turns: dict[int, int] = {}
        torch.cuda.synchronize(device)

    def address(self) -> int:
        """Address of the counter for a launch on torch's current stream.  Raises `ProblemError` when all are taken."""
        return self.of(current_stream(self._index), torch.cuda.is_current_stream_capturing())

    def of(self, stream: int, capturing: bool) -> int:
        """As `address`, for a known current stream."""
        key = captured_stream(stream, capturing)
        if key not in self._slots:
            most = len(self.memory)
            if len(self._slots) == most:
                raise ProblemError("streams and captured graphs", most + 1, f"at most {most} with tiles scheduled at run time")
            self._slots[key] = len(self._slots)
        return self._first + self.memory.stride(0) * BYTES * self._slots[key]

    def early(self, counter: int) -> int:
        """Address of the words for a launch that takes tiles before the previous launch on the stream of this counter ends.  Launches
        alternate between two words; the launch before the previous one has ended by then."""
        turn = self._turns[counter] = EACH - self._turns.get(counter, EACH - 1)
        return counter + turn * BYTES


tile_counters = lru_cache(TileCounters)
"""The counters of a device, made outside of a capture when its first kernel is loaded."""


class DecodeMemory:
    """Memory between CTAs of decode kernels on one device (kernels/decode/config.py): one tensor per stream, made for its first launch.  A
    call outside of captures leaves a spare tensor for the next capture; further captures allocate within the graph."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._words, self._device = size // BYTES, device
        self.kept: dict[tuple[int, int], torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []

    def of(self, stream: int, capturing: bool) -> int:
        """Address of the memory of torch's current stream."""
        key = captured_stream(stream, capturing)
        if not capturing:
            while len(self._spare) < 1 + (key not in self.kept):
                self._spare.append(outside_pools(self._ready))
        if key not in self.kept:
            self.kept[key] = self._spare.pop() if self._spare else self._make()
        return int(self.kept[key].data_ptr())

    def _make(self) -> torch.Tensor:
        memory = torch.full((self._words,), ABSENT, dtype=torch.int32, device=self._device)
        memory[: LINE // BYTES] = 0
        return memory

    def _ready(self) -> torch.Tensor:
        memory = self._make()
        torch.cuda.synchronize(self._device)
        return memory


decode_memory = lru_cache(DecodeMemory)
"""Memory of a device, shared by all decode kernels with the same size: launches of a stream run one after another."""
