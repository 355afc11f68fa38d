"""What the configurations of a GEMM share on every architecture: properties that the tile order and the scheduler read, and checks."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar

from ...arch import Arch
from ...config_error import CheckedConfig
from ...hardware.tensor_map import MapFields
from ...layouts.region import PLAN_OF_RING, most_that_fit
from .problem import CONTIGUOUS, ROW_BLOCK, GemmProblem


class BaseGemmConfig(CheckedConfig):
    """A frozen dataclass of JSON values, which select the row source of A (rows.py), the weight source of B (weights.py) and the epilogue
    (epilogue.py).  map_names: tensor maps, in the order of the kernel's parameters; blocks_per_fetch: tiles that a cluster takes at a time.
    """

    smem = PLAN_OF_RING
    arch: ClassVar[Arch]
    recipes: ClassVar[tuple[str, ...]]

    prefetch_weights: Any = False  # whether rows of B are on their way before the launch before this one has ended
    split_k: Any = False
    brings_rows: Any = False  # whether warps of CTA pairs bring rows of experts
    num_experts = property(attrgetter("problem.num_groups"))
    tile_columns = property(attrgetter("problem.tile_columns"))
    tile_rows = property(attrgetter("problem.tile_rows"))  # of a group where K are its rows
    k_blocks = most_k_blocks = property(attrgetter("problem.k_blocks"))
    fetchers = property(attrgetter("cluster"))

    def maps(self, args: Any) -> list[MapFields]:
        found = {name: one for part in (self.epilogue, self.rows, self.weights) for name, one in part.maps(self, args).items()}
        return [found[name] for name in self.map_names]

    def check_rows(self, rows: int) -> None:
        self.problem.check_rows(rows)

    @property
    def n_blocks(self) -> int:
        """Column blocks of D: blocks of `block_n` rows of B, of which the last may be partial."""
        return -(-self.tile_columns // int(self.block_n))

    @property
    def first_fetch(self) -> int:
        """Number of the first tile that a cluster fetches at run time; the tiles before it are each cluster's first ones."""
        return self.num_clusters * self.blocks_per_fetch

    @property
    def table_entries(self) -> int:
        """Entries of the table of groups in shared memory: one per expert and one for the end; 0 without a table."""
        return self.num_experts + 1 if self.problem.has_table else 0

    @property
    def has_own_table(self) -> bool:
        """Whether every CTA fills its table of groups before the roles begin, because not only the scheduler reads it."""
        return self.brings_rows or (self.problem.sums_rows and self.cluster > 1)

    @property
    def facts(self) -> list[tuple[str, object]]:
        schedule = "scheduled at run time" if self.dynamic_schedule else "in turn"
        of_experts = self.problem.of_experts and not self.problem.sums_rows
        rows = [("rows", self.rows.words), ("consumers", self.sharing)] if of_experts else []
        return [*self.tile_facts, ("order", f"{schedule}, {self.group_m} row blocks together"), ("stages", self.num_stages), *rows]

    # --- checks
    def check_problem(self) -> None:
        """Checks the types of the fields, and that the architecture has the problem's recipe.  Raises `ConfigError`."""
        self.check_declared(GemmProblem)
        self.require_any("problem.recipe", self.recipes, f" for {self.arch}")

    def check_grid(self) -> None:
        """Checks the grid and the order of its tiles.  Raises `ConfigError`."""
        kind = self.problem.kind
        divides = kind != CONTIGUOUS or ROW_BLOCK % self.block_m == 0
        self.require("block_m", divides, f"a divisor of {ROW_BLOCK} for a {kind} problem")
        self.check_clusters()
        self.require("group_m", self.group_m >= 1, "positive")
        self.only_where("trace", self.problem.of_experts, "but over the rows of experts")

    def check_stages(self, field: str) -> None:
        """Checks `num_stages` and replaces 0 by the deepest ring that fits.  Raises `ConfigError`; it names `field` if two do not fit."""
        self.check_depth(most_that_fit(lambda stages: int(self.smem_plan(stages).region.size), self.arch.smem_bytes), field)
