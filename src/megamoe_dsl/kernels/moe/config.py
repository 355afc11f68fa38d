"""How a problem is computed: tile shape, order of tiles, stages, thread and register budgets; what both architectures have in common.

A subclass per architecture has what differs (sm100/config.py, sm90/config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from ...arch import Arch
from ...config_error import CheckedConfig, require
from ...hardware.tensor_map import MapFields, TensorMap
from ...layouts.arith import Int, ceil_div, div
from ...layouts.region import PLAN_OF_RING, deepest_ring
from ...problem import Problem
from ...schedule.fused_moe import FusedMoeOrder, RingOrder
from .layouts.smem_plan import TILE_ROWS
from .layouts.symmetric import checked_pool_rows, most_blocks, pool_tokens, symmetric_buffer

WINDOW_QUARTERS = 3  # of a ring's blocks


class PerRole(NamedTuple):
    """How many warps of a CTA have each role.  Loaders also issue MMAs, schedule and store; epilogue warps finish tiles and combine."""

    dispatch: int
    loader: int
    epilogue: int
    decode: int = 0


@dataclass(frozen=True)
class MegaMoeConfig(CheckedConfig):
    """Compile-time choices of a mega kernel; raises `ConfigError` where a field is out of range.

    An architecture's configuration adds its own fields, and

    warps, block_k      warps of each role (`PerRole`), and channels of a stage
    blocks_per_fetch    blocks of the schedule that a cluster takes at a time
    siblings            the same tile with other values of the architecture's own fields, worth timing beside it
    alternating_groups  epilogue warpgroups that take alternate tiles; 1 where every one works on every tile
    smem_plan, linear_maps, output_maps  shared memory, and tensor maps of a linear and of Linear1's outputs (memory_plan.py)
    fc2_parts           parts of a pool block's intermediate channels that are stored, and signalled, one at a time (arrival.py)
    of_stage(linear)    the same for a launch of one stage (unfused/), which is `linear` or not
    sf_row(pool_block, row_in_block)  word index of a pool row in the M-major scale buffers
    """

    arch: ClassVar[Arch]
    recipes: ClassVar[tuple[str, ...]]
    tiles_of: ClassVar[Any]  # of a problem, what `block_m` may be, in order
    group_m: ClassVar[int]  # token blocks that the schedule takes together
    table_maps: ClassVar[tuple[str, ...]]  # tensor maps in the order of their table; Linear2's have the names of Linear1's (memory_plan.py)
    linear_registers: ClassVar[Mapping[str, int]] = {}  # of a launch of Linear1 or Linear2 alone; empty: as here

    problem: Problem
    block_m: int  # tokens of a tile: the N of the MMA; on SM90 128 are its M
    lookahead: int  # experts by which Linear1 runs ahead of Linear2; with experts_per_rank, Linear2 starts after all tiles of Linear1
    num_sms: int  # CTAs of the grid, on SM100 even
    num_stages: int = 0  # depth of the TMA ring; 0 chooses the deepest that fits
    # None: the token pool has rows for any routing.  A multiple of 128: the pool is a ring of at most so many rows; a row is used again
    # after Linear2 of its token (schedule/fused_moe.py)
    pool_rows: int | None = field(default=None, kw_only=True)
    trace: bool = field(default=False, kw_only=True)  # warps record time stamps for profiles (layouts/records.py)

    def __post_init__(self) -> None:
        self.check_declared(Problem)
        self.require_recipe(self.problem)
        tiles = self.tiles_of(self.problem)
        self.require("block_m", self.block_m in tiles, f"one of {list(tiles)} for {self.problem.recipe}")
        object.__setattr__(self, "pool_rows", checked_pool_rows(self.pool_rows))
        self.require_between("lookahead", 1, self.problem.experts_per_rank, ", the experts of a rank")
        self.check_fields()
        # What takes more of the SMEM: rows of tokens, or the tables with an entry per expert.
        taken = {place.field.name: place.field.num_bytes for place in self.smem_plan(1).region}
        rows, tables = max(taken["pull"], taken["combine_slots"]), taken["expert_count"] + taken["expert_table"]
        self.check_depth(deepest_ring(self), "problem.hidden" if rows > tables else "problem.num_experts")
        total = self.register_total
        self.require("registers", total <= self.arch.registers, f"at most {self.arch.registers} in all, got {total}")

    @classmethod
    def require_recipe(cls, problem: Problem) -> None:
        """Raises `ConfigError` for number formats that the kernel does not take."""
        require(problem.recipe in cls.recipes, "problem.recipe", problem.recipe, " or ".join(cls.recipes) + f" for {cls.arch}")

    # --- threads and registers
    epilogue_warps = property(attrgetter("warps.epilogue"))
    dispatch_epilogue_threads = property(lambda self: 32 * (self.warps.dispatch + self.warps.epilogue))
    num_threads = property(lambda self: 32 * sum(self.warps))

    @property
    def register_total(self) -> int:
        return 32 * sum(getattr(self.warps, role) * count for role, count in self.registers.items())

    # --- tiles
    fetchers = property(attrgetter("cluster"))  # CTAs that share loads

    @property
    def ring_blocks(self) -> int:
        """Token blocks that the pool has rows for if it is a ring; 0 if it has rows for all that there can be."""
        blocks = pool_tokens(self.problem, self.pool_rows) // self.block_m
        return blocks if blocks < most_blocks(self.problem, self.block_m) else 0

    order = property(lambda self: RingOrder if self.ring_blocks else FusedMoeOrder)

    def first_row(self, pool_block: Int) -> Int:
        if self.ring_blocks:
            pool_block = pool_block - div(pool_block, self.ring_blocks) * self.ring_blocks
        return pool_block * self.block_m

    fc1_n_blocks = property(lambda self: ceil_div(2 * self.problem.intermediate, TILE_ROWS))
    fc1_k_blocks = property(lambda self: ceil_div(self.problem.hidden, self.block_k))
    fc2_n_blocks = property(lambda self: ceil_div(self.problem.hidden, TILE_ROWS))
    fc2_k_blocks = property(lambda self: ceil_div(self.problem.intermediate, self.block_k))

    @property
    def window(self) -> int:
        """Places of a ring that Linear1 may be ahead (schedule/fused_moe.py).  Dispatch fills the rest of the rows meanwhile."""
        return max(1, self.ring_blocks * WINDOW_QUARTERS // 4)

    @property
    def weight_scales(self) -> bool:
        """Whether FP32 scales of the weights are arguments, because neither the weights' tiles nor tensor maps bring them."""
        return self.problem.formats.promoted and not self.problem.formats.decodes

    # --- plans
    symmetric = property(lambda self: symmetric_buffer(self.problem, self.arch, self.pool_rows))

    def tensor_maps(self, sym: int, weights: Mapping[str, int]) -> list[TensorMap]:
        """Beyond the last channel of tokens and of Linear1's outputs TMA loads zeros and stores nothing."""
        p, region, found = self.problem, self.symmetric, list[MapFields]()
        linears = ("fc1", p.formats.activations, p.hidden, self.fc1_n_blocks), ("fc2", p.formats.hidden, p.intermediate, self.fc2_n_blocks)
        for name, form, k, tiles in linears:
            rows = region.address(sym, f"{name}_acts"), form.row_bytes(k), region[f"{name}_acts"].field.shape[0]
            scales = region.address(sym, f"{name}_sf"), *region[f"{name}_sf"].field.shape
            found += self.linear_maps(name, rows, scales, k, tiles, weights)
        return [one.tensor_map for one in (*found, *self.output_maps(rows))]

    smem = PLAN_OF_RING


def experts_with(tiles: float, per_expert: int, experts: int) -> int:
    """How many experts with `per_expert` tiles each have `tiles` tiles together, rounded up to a power of two, and at most `experts`.  The
    fewer values this has, the fewer kernels are compiled to serve all numbers of tokens."""
    return min(1 << (ceil(tiles / per_expert) - 1).bit_length(), experts)


def require_whole_tiles(config: Any, what: str) -> None:
    """Hidden and intermediate of whole tiles, for kernels that have no place for less.  Raises `ConfigError`."""
    for name, step in (("hidden", TILE_ROWS), ("intermediate", TILE_ROWS // 2)):
        config.require(f"problem.{name}", getattr(config.problem, name) % step == 0, f"a multiple of {step} {what}")
