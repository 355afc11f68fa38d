"""How many agents the race detector can tell apart: known before anything expensive."""

from __future__ import annotations

from collections.abc import Iterable

from .access_record import AGENT_MASK
from .errors import SimError
from .geometry import Geometry

MAX_AGENTS = (AGENT_MASK + 1) // 2
"""Warps and engines; as many numbers are left for lanes that act alone."""


def agents_needed(launches: Iterable[Geometry]) -> int:
    """The least number of agents that a run of these launches with the race detector needs: one for every warp.

    Engines come on top of it when they are first used (the TMA loads of an mbarrier, both sides of a warp's bulk stores, tensor pipes).
    """
    return sum(launch.ctas * launch.warps for launch in launches)


def check_agents(needed: int, so_far: bool = True, lanes: int = 0) -> None:
    """Raise SimError when the race detector cannot have that many agents, or that many lanes beside them."""
    if needed > MAX_AGENTS or needed + lanes > AGENT_MASK + 1:
        what = "so far" if so_far else "for the warps alone"
        remedy = "run fewer or smaller CTAs, ranks or launches at a time, or turn the detector off (race=False)"
        what += f" and {lanes} lanes" if lanes else ""
        raise SimError(f"race detector: {needed} agents {what}, the limit is {MAX_AGENTS}: {remedy}")
