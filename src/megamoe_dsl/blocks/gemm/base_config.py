"""What the configurations of a GEMM have in common on every architecture: what the order of tiles and the scheduler ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any, ClassVar, Self, cast

from ...arch import Arch
from ...config_error import require, require_integers
from ...hardware.cta_pair import TmemPlan
from ...hardware.tensor_map import MapFields
from ...target import Target
from .problem import GemmProblem


class BaseGemmConfig(ABC):
    """A frozen dataclass of JSON values; the fields named here are among them, or properties."""

    arch: ClassVar[Arch]
    recipes: ClassVar[tuple[str, ...]]

    problem: GemmProblem
    block_m: int
    num_sms: int
    group_m: int
    num_stages: int
    dynamic_schedule: bool

    @property
    @abstractmethod
    def cluster(self) -> int:
        """A cluster has so many CTAs, 1 where each CTA works alone."""

    @property
    @abstractmethod
    def num_threads(self) -> int:
        """A CTA has so many threads, those of all its warps together."""

    @property
    @abstractmethod
    def blocks_per_fetch(self) -> int:
        """Tiles that a cluster takes at a time."""

    @property
    @abstractmethod
    def n_blocks(self) -> int:
        """The `n` rows of B make so many blocks of `block_n`, of which the last may be partial."""

    @property
    @abstractmethod
    def rows(self) -> Any:
        """Who brings rows of A (rows.py, sm100/rows.py)."""

    @property
    @abstractmethod
    def weights(self) -> Any:
        """Who brings rows of B (weights.py, sm100/weights.py)."""

    @property
    @abstractmethod
    def epilogue(self) -> Any:
        """What becomes of sums (epilogue.py, sm100/finish.py)."""

    @property
    @abstractmethod
    def map_names(self) -> tuple[str, ...]:
        """Tensor maps, in the order of the kernel's parameters."""

    def maps(self, args: Any) -> list[MapFields]:
        """Fields of the tensor maps, in the same order; `args` has those of the kernel's arguments."""
        found = {name: one for part in (self.epilogue, self.rows, self.weights) for name, one in part.maps(self, args).items()}
        return [found[name] for name in self.map_names]

    @property
    def prefetch_weights(self) -> bool:
        """Whether rows of B are on their way before the launch before this one has ended."""
        return False

    @classmethod
    @abstractmethod
    def choose(cls, problem: GemmProblem, target: Target, rows: int, *, batch_invariant: bool = False, **fields: Any) -> Self:
        """The configuration for `rows` rows of A; `fields` replace what is chosen.  `batch_invariant`: only tiles that add up K in one
        order, so that a row of D does not depend on how many there are."""

    @abstractmethod
    def smem_plan(self, num_stages: int) -> Any:
        """Shared memory with so many stages."""

    def replace(self, **changes: Any) -> Self:
        """The same with other values of fields.  Raises `ConfigError`."""
        return replace(cast(Any, self), **changes)

    @property
    def tmem(self) -> TmemPlan | None:
        """The plan of tensor memory, where there is any."""
        return None

    @property
    def smem(self) -> Any:
        return self.smem_plan(self.num_stages)

    @property
    def row_loader(self) -> str:
        """Who loads rows of A, in words."""
        words: str = self.rows.words
        return words

    @property
    def num_experts(self) -> int:
        """Groups, as the order of grouped tiles calls them."""
        return self.problem.num_groups

    @property
    def num_clusters(self) -> int:
        return self.num_sms // self.cluster

    @property
    def fetchers(self) -> int:
        """CTAs of a cluster that may fetch operands for one another."""
        return self.cluster

    @property
    def most_k_blocks(self) -> int:
        """K blocks of a tile that a CTA multiplies."""
        return self.problem.k_blocks

    @property
    def first_fetch(self) -> int:
        """The first number of a tile that is fetched: those before it are the first of each cluster."""
        return self.num_clusters * self.blocks_per_fetch

    @property
    def table_entries(self) -> int:
        """The table of groups in shared memory has an entry for each expert and one for the end; a problem without a table has 0."""
        return self.num_experts + 1 if self.problem.has_table else 0

    def check_problem(self) -> None:
        """A problem of the architecture's recipes.  Raises `ConfigError`."""
        require(isinstance(self.problem, GemmProblem), "problem", self.problem, "a GemmProblem")
        allowed = " or ".join(self.recipes) + f" for {self.arch}"
        require(self.problem.recipe in self.recipes, "problem.recipe", self.problem.recipe, allowed)

    def check_types(self) -> None:
        """Integers and booleans where they are declared.  Raises `ConfigError`."""
        declared = [(one.name, one.type) for one in fields(cast(Any, self))]
        require_integers(self, *(name for name, kind in declared if kind == "int"))
        for name in (name for name, kind in declared if kind == "bool"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")

    def check_stages(self, field: str) -> None:
        """As many as fit, which `num_stages` of 0 asks for.  Raises `ConfigError`; `field` is what a tile is too large by."""
        most = 0
        while self.smem_plan(most + 1).region.size <= self.arch.smem_bytes:
            most += 1
        require(most >= 2, field, getattr(self, field), "small enough to leave SMEM for two stages")
        if self.num_stages == 0:
            object.__setattr__(self, "num_stages", most)
        require(2 <= self.num_stages <= most, "num_stages", self.num_stages, f"between 2 and {most}, or 0 for the deepest")
