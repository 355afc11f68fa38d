"""What one rank has to do in one launch, whatever does it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """FLOP, bytes between a GPU's memory and its caches, and bytes over links to other GPUs in the direction that has more."""

    flop: float
    hbm_bytes: float
    nvlink_bytes: float
