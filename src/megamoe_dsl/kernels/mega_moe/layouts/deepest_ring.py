"""The deepest TMA ring that fits an SMEM plan of either architecture."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any


@lru_cache
def deepest_ring(plan: Any, capacity: int) -> int:
    """Stages of the deepest ring of a plan, which has `num_stages` and `num_bytes`, within `capacity` bytes; 0 when not one fits.

    Cached, because a preset asks for every number of tokens and there are few plans.
    """
    stages = 0
    while replace(plan, num_stages=stages + 1).num_bytes <= capacity:
        stages += 1
    return stages
