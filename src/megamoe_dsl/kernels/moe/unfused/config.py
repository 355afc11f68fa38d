"""The configuration of a stage: that of the fused kernel and which stage of it the launch computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from ....config_error import require, require_integers
from ....layouts.arith import ceil_div
from ....schedule.fused_moe import FC1
from ..config import MegaMoeConfig, RegisterBudget, require_whole_tiles
from ..layouts.combine_plan import LANE_VECTOR
from ..layouts.tile import LOADER_WARPS
from .stage import LAYER_STAGES, STAGE_NAMES, LayerStage, StagePlan

BLOCKS_PER_PART = 4
"""Blocks of 128 intermediate channels that a warp of SwiGLU takes at a time, eight lanes each."""
MOST_PUSHED = 2048  # channels: eight vectors of 16 bytes in each lane


@dataclass(frozen=True)
class StageConfig:
    """Compile-time choices of a stage; raises `ConfigError` where a field is out of range.

    fused       the fused kernel's configuration, without what no stage has (`of_stage`): tile, pool layout and grid are its own
    stage       name of the stage (stage.py)
    num_stages  depth of the stage's own TMA ring; 0 asks for the deepest that fits

    Roles of the fused kernel run on it as they are: what a stage does not change is read from `fused`.
    """

    fused: MegaMoeConfig
    stage: str
    num_stages: int = 0

    def __post_init__(self) -> None:
        require(self.stage in STAGE_NAMES, "stage", self.stage, "one of " + ", ".join(STAGE_NAMES))
        require_integers(self, "num_stages")
        problem, fused = self.fused.problem, self.fused.of_stage(self.part.linear)
        require_whole_tiles(problem, "in stages")
        require(not fused.ring_blocks, "problem.pool_rows", problem.pool_rows, "None, or enough for any routing, in stages")
        object.__setattr__(self, "fused", fused)
        most = self.plan(1).max_stages(self.arch.smem_bytes)
        if self.num_stages == 0:
            object.__setattr__(self, "num_stages", most)
        require(2 <= self.num_stages <= most, "num_stages", self.num_stages, f"between 2 and {most}, or 0 for the deepest")

    def __getattr__(self, name: str) -> Any:
        if name == "fused":  # a copy that has no fields yet
            raise AttributeError(name)
        return getattr(self.fused, name)

    def replace(self, **changes: Any) -> Self:
        """The same with other values of fields.  Raises `ConfigError`."""
        return replace(self, **changes)

    @property
    def part(self) -> LayerStage:
        """What the launch keeps of the fused kernel."""
        return LAYER_STAGES[STAGE_NAMES.index(self.stage)]

    @property
    def num_threads(self) -> int:
        return 32 * self.part.warps(self.fused)

    @property
    def cluster(self) -> int:
        """CTAs of a cluster: where nothing is multiplied, they are on their own."""
        return self.fused.cluster if self.part.linear else 1

    @property
    def num_clusters(self) -> int:
        return self.num_sms // self.cluster

    @property
    def registers(self) -> RegisterBudget:
        """Registers per thread of loaders and epilogue in a linear stage."""
        return self.fused.linear_registers

    @property
    def register_total(self) -> int | None:
        """Registers of all threads of a CTA of a linear stage."""
        loaders = LOADER_WARPS * self.registers.loader
        return 32 * (loaders + self.fused.epilogue_warps * self.registers.epilogue) if self.part.linear else None

    @property
    def smem(self) -> StagePlan:
        return self.plan(self.num_stages)

    def plan(self, num_stages: int) -> StagePlan:
        """Shared memory with a ring of another depth."""
        return StagePlan(self.fused.stage_plan(num_stages), self.part)

    # --- linear stages, for the order of tiles (schedule/grouped.py)
    @property
    def num_experts(self) -> int:
        return self.problem.experts_per_rank

    @property
    def n_blocks(self) -> int:
        """256-row tiles of the stage's weights."""
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
