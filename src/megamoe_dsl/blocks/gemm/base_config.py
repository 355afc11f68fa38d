"""What the configurations of a GEMM have in common on every architecture: what the order of tiles and the scheduler ask for."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar

from ...arch import Arch
from ...config_error import CheckedConfig
from ...hardware.tensor_map import MapFields
from ...layouts.region import PLAN_OF_RING, most_that_fit
from .problem import CONTIGUOUS, ROW_BLOCK, GemmProblem


class BaseGemmConfig(CheckedConfig):
    """A frozen dataclass of JSON values, and the parts that they choose: who brings rows of A (rows.py) and of B (weights.py), what
    becomes of sums (epilogue.py).  map_names: tensor maps, in the order of the kernel's parameters; blocks_per_fetch: tiles that a
    cluster takes at a time.
    """

    smem = PLAN_OF_RING
    arch: ClassVar[Arch]
    recipes: ClassVar[tuple[str, ...]]

    registers: Any = None
    tmem: Any = None
    prefetch_weights: Any = False  # whether rows of B are on their way before the launch before this one has ended
    split_k: Any = False
    brings_rows: Any = False  # whether warps of CTA pairs bring rows of experts
    num_experts, tile_columns = property(attrgetter("problem.num_groups")), property(attrgetter("problem.tile_columns"))
    tile_rows = property(attrgetter("problem.tile_rows"))  # of a group where K are its rows
    k_blocks = most_k_blocks = property(attrgetter("problem.k_blocks"))
    fetchers = property(attrgetter("cluster"))

    def maps(self, args: Any) -> list[MapFields]:
        """Fields of the tensor maps, in the order of `map_names`; `args` has those of the kernel's arguments."""
        found = {name: one for part in (self.epilogue, self.rows, self.weights) for name, one in part.maps(self, args).items()}
        return [found[name] for name in self.map_names]

    def check_rows(self, rows: int) -> None:
        self.problem.check_rows(rows)

    @property
    def n_blocks(self) -> int:
        """The tile's columns, `n` rows of B, make so many blocks of `block_n`, of which the last may be partial."""
        return -(-self.tile_columns // int(self.block_n))

    @property
    def first_fetch(self) -> int:
        """The first number of a tile that is fetched: those before it are the first of each cluster."""
        return self.num_clusters * self.blocks_per_fetch

    @property
    def table_entries(self) -> int:
        """The table of groups in shared memory has an entry for each expert and one for the end; a problem without a table has 0."""
        return self.num_experts + 1 if self.problem.has_table else 0

    @property
    def has_own_table(self) -> bool:
        """Whether every CTA fills a table of groups before its roles begin, because others than the scheduler read it."""
        return self.brings_rows or (self.problem.sums_rows and self.cluster > 1)

    @property
    def facts(self) -> list[tuple[str, object]]:
        schedule = "scheduled at run time" if self.dynamic_schedule else "in turn"
        of_experts = self.problem.of_experts and not self.problem.sums_rows
        rows = [("rows", self.rows.words), ("consumers", self.sharing)] if of_experts else []
        return [*self.tile_facts, ("order", f"{schedule}, {self.group_m} row blocks together"), ("stages", self.num_stages), *rows]

    # --- checks
    def check_problem(self) -> None:
        """A problem of the architecture's recipes, and declared types of fields.  Raises `ConfigError`."""
        self.check_declared(GemmProblem)
        self.require_any("problem.recipe", self.recipes, f" for {self.arch}")

    def check_grid(self) -> None:
        """The grid, and the order of its tiles.  Raises `ConfigError`."""
        kind = self.problem.kind
        divides = kind != CONTIGUOUS or ROW_BLOCK % self.block_m == 0
        self.require("block_m", divides, f"a divisor of {ROW_BLOCK} for a {kind} problem")
        self.check_clusters()
        self.require("group_m", self.group_m >= 1, "positive")
        self.only_where("trace", self.problem.of_experts, "but over the rows of experts")

    def check_stages(self, field: str) -> None:
        """As many as fit, which `num_stages` of 0 asks for.  Raises `ConfigError`; `field` is what a tile is too large by."""
        self.check_depth(most_that_fit(lambda stages: int(self.smem_plan(stages).region.size), self.arch.smem_bytes), field)
