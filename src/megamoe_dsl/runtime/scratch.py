"""Memory that the launches of a call leave for one another, kept for the calls that follow it on a stream: to allocate takes the host as
long as a launch."""

from __future__ import annotations

from functools import lru_cache

import torch

KEPT = 64 << 20
"""Bytes, at most, that are kept for a stream."""


class Scratch:
    """Of one device.  Calls on a stream follow one another, so the next may write what the last has left."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[int, torch.Tensor] = {}

    def of(self, size: int, stream: int, capturing: bool) -> torch.Tensor:
        """uint8 [size or more] for a call on torch's current `stream`; of its own for a call that a graph captures, which may run beside
        the stream it was captured on, or that takes more than is kept."""
        if capturing or size > KEPT:
            return torch.empty(size, dtype=torch.uint8, device=self._device)
        kept = self._kept.get(stream)
        if kept is None or kept.numel() < size:
            kept = self._kept[stream] = torch.empty(size, dtype=torch.uint8, device=self._device)
        return kept


@lru_cache
def scratch(device: torch.device) -> Scratch:
    return Scratch(device)


__all__ = ["Scratch", "scratch"]
