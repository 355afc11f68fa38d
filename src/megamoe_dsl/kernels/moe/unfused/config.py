"""The configuration of a stage: that of the fused kernel and which stage of it the launch computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from ....config_error import CheckedConfig
from ....layouts.arith import ceil_div
from ....layouts.region import BF16, PLAN_OF_RING, Field, Region, deepest_ring
from ....schedule.fused_moe import FC1, FC2
from ..config import MegaMoeConfig, require_whole_tiles
from ..layouts.smem_plan import DISPATCH_WARPS, LANE_VECTOR, LOADER_WARPS, SmemPlan
from ..layouts.symmetric import TMA_ALIGNMENT, pool_tokens

SWIGLU_WARPS = 16


@dataclass(frozen=True)
class LayerStage:
    """One launch of the layer."""

    name: str  # the kernel is `moe_` and this name
    warps: Callable[[MegaMoeConfig], int]  # warps of a CTA, given the fused kernel's configuration
    keeps: tuple[str, ...]  # fields of the fused kernel's SMEM plan that the stage's roles share, in SMEM order
    phase: int | None = None  # the linear that the stage computes, as a grouped GEMM over the pool; None for the others


TILES = ("weights", "tokens", "cd", "sfb", "sfa", "decoded", "work_tiles", "tmem_address", "expert_table")
BARRIERS = tuple(f"{name}_barrier" for name in ("full", "empty", "acc_full", "acc_empty", "counts", "work_tile_full", "work_tile_empty"))
COUNTS = ("expert_table", "counts_barrier")
LAYER_STAGES = (
    LayerStage("dispatch", lambda fused: DISPATCH_WARPS + 1, ("pull", "expert_count", *COUNTS, "pull_barrier")),
    LayerStage("fc1", lambda fused: LOADER_WARPS + fused.epilogue_warps, (*TILES, *BARRIERS), FC1),
    LayerStage("swiglu", lambda fused: SWIGLU_WARPS, COUNTS),
    LayerStage("fc2", lambda fused: LOADER_WARPS + fused.epilogue_warps, (*TILES, *BARRIERS), FC2),
    LayerStage("combine", lambda fused: DISPATCH_WARPS + fused.epilogue_warps, ("combine_slots", *COUNTS, "combine_barrier")),
)
"""In the order of their launches."""
STAGE_NAMES = tuple(stage.name for stage in LAYER_STAGES)

BLOCKS_PER_PART = 4
"""Blocks of 128 intermediate channels that a warp of SwiGLU takes at a time, eight lanes each."""
MOST_PUSHED = 2048  # channels: eight vectors of 16 bytes in each lane


@dataclass(frozen=True)
class StageConfig(CheckedConfig):
    """Compile-time choices of a stage; raises `ConfigError` where a field is out of range.

    Roles of the fused kernel run on it as they are: what a stage does not change is read from `fused`.
    """

    fused: MegaMoeConfig  # configuration of the fused kernel, reduced by `of_stage`; the stage takes tile, pool layout and grid from it
    stage: str  # name of the stage (`LAYER_STAGES`)
    num_stages: int = 0  # depth of the stage's own TMA ring; 0 chooses the deepest that fits

    def __post_init__(self) -> None:
        self.require("stage", self.stage in STAGE_NAMES, "one of " + ", ".join(STAGE_NAMES))
        self.check_declared()
        problem, fused = self.fused.problem, self.fused.of_stage(self.multiplies)
        require_whole_tiles(self, "in stages")
        staged = problem.formats.scaled and not problem.formats.weights.factor
        self.require("problem.recipe", staged, "one whose operands have scales, and no factors, in stages")
        self.require("pool_rows", not fused.ring_blocks, "None, or enough for any routing, in stages")
        object.__setattr__(self, "fused", fused)
        fits = self.smem_plan(1).region.size <= self.arch.smem_bytes
        self.check_depth(deepest_ring(self) if self.multiplies or not fits else 2)

    def __getattr__(self, name: str) -> Any:
        if name == "fused":  # a copy that has no fields yet
            raise AttributeError(name)
        return getattr(self.fused, name)

    part = property(lambda self: LAYER_STAGES[STAGE_NAMES.index(self.stage)])
    multiplies = property(lambda self: self.part.phase is not None)
    num_threads = property(lambda self: 32 * self.part.warps(self.fused))

    @property
    def cluster(self) -> int:
        """CTAs of a cluster: where nothing is multiplied, they are on their own."""
        return self.fused.cluster if self.multiplies else 1

    @property
    def registers(self) -> dict[str, int]:
        """Loaders have some, and the epilogue; where nothing is multiplied threads keep what they begin with."""
        found = self.fused.linear_registers or self.fused.registers
        return {role: found[role] for role in ("loader", "epilogue")} if self.multiplies else {}

    register_total = MegaMoeConfig.register_total

    facts = property(lambda self: [self.fused.facts[0], ("stages", self.num_stages)] if self.multiplies else [])

    smem = PLAN_OF_RING
    tmem = property(lambda self: self.fused.tmem if self.multiplies else None)
    tensor_maps = property(attrgetter("fused.tensor_maps"))

    def smem_plan(self, num_stages: int) -> SmemPlan:
        return self.fused.smem_plan(num_stages, keeps=self.part.keeps)  # type: ignore[no-any-return]

    @cached_property
    def results(self) -> Region:
        """What linears leave for the stage after them, a row for each of the pool."""
        pool = pool_tokens(self.problem, self.pool_rows)
        return Region.stack(
            "results",
            Field("fc1_out", (pool, 2 * self.problem.intermediate), BF16, TMA_ALIGNMENT),  # columns in the order of the weights' rows
            Field("fc2_out", (pool, self.problem.hidden), BF16, TMA_ALIGNMENT),
        )

    # --- linear stages, for the order of tiles (`GroupedOrder`)
    num_experts = property(attrgetter("problem.experts_per_rank"))

    @property
    def n_blocks(self) -> int:
        return self.fused.fc1_n_blocks if self.part.phase == FC1 else self.fused.fc2_n_blocks

    # --- stages that go over the received tokens
    @property
    def token_parts(self) -> int:
        """Parts of a token for SwiGLU: a warp takes one at a time."""
        return ceil_div(self.fused.fc1_n_blocks, BLOCKS_PER_PART)

    @property
    def push_channels(self) -> int:
        """Channels of a row that a warp of combine sends at a time."""
        hidden = self.problem.hidden
        return next(n for n in range(MOST_PUSHED, 0, -LANE_VECTOR) if hidden % n == 0)


LayerConfig = MegaMoeConfig | StageConfig
"""What computes a layer, or a stage of one, on the same buffers."""
