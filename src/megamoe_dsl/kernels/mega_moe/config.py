"""What configurations of the mega kernels have in common."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ...config_error import ConfigError
from ...problem import Problem

if TYPE_CHECKING:
    from .sm90.smem_plan import Sm90SmemPlan
    from .sm100.smem_plan import Sm100SmemPlan

REGISTER_FILE = 65536


@dataclass(frozen=True)
class RegisterBudget:
    """Registers per thread after `setmaxnreg`, per warpgroup role; all multiples of 8."""

    dispatch: int
    loader: int
    epilogue: int


def experts_with(tiles: float, per_expert: int, experts: int) -> int:
    """So many of the `experts` that they have `tiles` tiles together: a power of two or all, so that few kernels serve all numbers of
    tokens."""
    return min(1 << (ceil(tiles / per_expert) - 1).bit_length(), experts)


def no_room_for_a_ring(problem: Problem, plan: Sm100SmemPlan | Sm90SmemPlan) -> ConfigError:
    """Names what takes more of the SMEM: rows of tokens, or the tables with an entry per expert."""
    taken = {place.field.name: place.field.num_bytes for place in plan.region}
    rows, tables = max(taken["pull"], taken["combine_slots"]), taken["expert_count"] + taken["expert_table"]
    field, value = ("hidden", problem.hidden) if rows > tables else ("num_experts", problem.num_experts)
    return ConfigError(f"problem.{field}", value, "small enough to leave SMEM for two stages")
