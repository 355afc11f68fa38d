"""How the two halves of an expert-parallel layer are computed: the tile of the GEMM, and how tokens travel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from ....arch import SM90, Arch
from ....blocks.gemm.base_config import BaseGemmConfig
from ....blocks.gemm.config import LOADER_WARPS
from ....blocks.gemm.problem import MASKED, GemmProblem
from ....config_error import require, require_integers
from ....layouts.arith import Int
from ....problem import Problem
from ....target import Target
from ..config import RegisterBudget, require_whole_tiles
from ..layouts.combine_plan import CombinePlan
from .gemm_config import EpGemmConfig
from .layouts.pool import pool_rows
from .layouts.symmetric import Kept
from .smem_plan import COMMUNICATION_WARPS, CombineSmemPlan, DispatchPlan, EpSmemPlan
from .tuned_fields import Half, tuned_fields

NUM_SMS = 132  # of an H200
REGISTERS = RegisterBudget(dispatch=48, loader=32, epilogue=216)
TILES = (64, 128)
COLUMNS = (64, 128, 256)
ROW_ALIGNMENT = 128
MOST_SLOTS = 4
MOST_CHUNK = 2048  # bytes of a row that one bulk copy moves; all chunks of a row are on their way at a time
MOST_TASK_TOKENS = 32  # a lane each
COMBINE_BYTES = 40 * 1024  # of slots, beside a ring of three stages


@dataclass(frozen=True)
class EpConfig(ABC):
    """Compile-time choices of both kernels; raises `ConfigError` where a field is out of range.

    block_m     rows of a tile: 64 or 128
    block_n     weight rows of a tile: 64, 128 or 256
    group_m     row blocks that the order of tiles takes together
    num_sms     CTAs of the grid
    num_stages  depth of the TMA ring; 0 asks for the deepest that fits
    cluster     CTAs that work on neighbouring tiles and fetch together what both need: 1 or 2
    task_tokens tokens that are handed out together to a communication warp
    trace       warps leave stamps of what they were doing (layouts/activity.py); for profiles
    """

    arch: ClassVar[Arch] = SM90
    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp8", "bf16xbf16")
    half: ClassVar[Half]
    tiles: ClassVar[tuple[int, ...]] = TILES
    columns: ClassVar[tuple[int, ...]] = COLUMNS
    clusters: ClassVar[tuple[int, ...]] = (1, 2)

    problem: Problem
    block_m: int = 128
    block_n: int = 256
    group_m: int = 16
    num_sms: int = NUM_SMS
    num_stages: int = 0
    cluster: int = 1
    task_tokens: int = 4
    trace: bool = False

    def __post_init__(self) -> None:
        require(isinstance(self.problem, Problem), "problem", self.problem, "a Problem")
        p = self.problem
        require(p.recipe in self.recipes, "problem.recipe", p.recipe, " or ".join(self.recipes) + f" for {self.arch}")
        require_whole_tiles(p, "in halves of the layer")
        require(p.pool_rows is None, "problem.pool_rows", p.pool_rows, "None: rows are not used again")
        require(not p.biases, "problem.biases", p.biases, "False: the linears have none")
        require(p.combine == "bf16", "problem.combine", p.combine, "bf16")
        require(p.activation_clamp is None, "problem.activation_clamp", p.activation_clamp, "None: the activation is the caller's")
        require_integers(self, "block_m", "block_n", "group_m", "num_sms", "num_stages", "cluster", "task_tokens")
        require(self.block_m in self.tiles, "block_m", self.block_m, f"one of {list(self.tiles)}")
        require(self.block_n in self.columns, "block_n", self.block_n, f"one of {list(self.columns)}")
        require(self.cluster in self.clusters, "cluster", self.cluster, " or ".join(map(str, self.clusters)))
        require(self.num_sms >= 1 and self.num_sms % self.cluster == 0, "num_sms", self.num_sms, f"a positive multiple of {self.cluster}")
        require(self.group_m >= 1, "group_m", self.group_m, "positive")
        require(1 <= self.task_tokens <= MOST_TASK_TOKENS, "task_tokens", self.task_tokens, f"between 1 and {MOST_TASK_TOKENS}")
        require(isinstance(self.trace, bool), "trace", self.trace, "True or False")
        self.check_fields()
        most = 0
        while self.smem_plan(most + 1).region.size <= self.arch.smem_bytes:
            most += 1
        require(most >= 2, "block_n", self.block_n, "small enough to leave SMEM for two stages")
        if self.num_stages == 0:
            object.__setattr__(self, "num_stages", most)
        require(2 <= self.num_stages <= most, "num_stages", self.num_stages, f"between 2 and {most}, or 0 for the deepest")

    @abstractmethod
    def check_fields(self) -> None:
        """Checks what the subclass adds.  Raises `ConfigError`."""

    @property
    @abstractmethod
    def gemm_problem(self) -> GemmProblem:
        """The grouped GEMM."""

    @classmethod
    def choose(cls, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> Self:
        """The configuration for `num_tokens` tokens on every rank; `fields` replace what is chosen: pairs of CTAs, where the grid has an
        even number of them, and what was faster at a measured point that is near (tuned_fields.py)."""
        problem.check_num_tokens(num_tokens)
        num_sms = fields.get("num_sms", target.num_sms)
        tuned = tuned_fields(cls.half, problem, num_tokens, target.gpu)
        return cls(problem, **{"num_sms": num_sms, "cluster": 1 if num_sms % 2 else 2, **tuned, **fields})

    def replace(self, **changes: Any) -> Self:
        """The same with other values of fields.  Raises `ConfigError`."""
        return replace(self, **changes)

    # --- what one of the halves may do
    @property
    @abstractmethod
    def keeps(self) -> Kept:
        """What its symmetric buffer has beyond what every configuration needs."""

    # --- the GEMM
    @cached_property
    def gemm(self) -> Any:
        """As its roles know it."""
        return self._gemm(self.num_stages)

    def _gemm(self, num_stages: int) -> BaseGemmConfig:
        return EpGemmConfig(
            self.gemm_problem,
            self.block_m,
            self.block_n,
            self.num_sms,
            warpgroups=2,
            cluster=self.cluster,
            dealt=True,
            group_m=self.group_m,
            halves=self.block_m == max(TILES),
            num_stages=num_stages,
        )

    def scale_row(self, row: Int) -> Int:
        """Where a row's scales lie among those of all."""
        return row

    # --- threads and registers
    @property
    def num_clusters(self) -> int:
        return self.num_sms // self.cluster

    @property
    def math_warps(self) -> int:
        return self._math_warps(self.gemm)

    def _math_warps(self, gemm: Any) -> int:
        count: int = gemm.math_warps
        return count

    @property
    def num_threads(self) -> int:
        return 32 * self._warps(self.gemm)

    def _warps(self, gemm: Any) -> int:
        return LOADER_WARPS + self._math_warps(gemm) + COMMUNICATION_WARPS

    @property
    def registers(self) -> RegisterBudget:
        """Per thread: of the communication warps, of the loaders, of those that multiply."""
        return REGISTERS

    @property
    def register_total(self) -> int:
        """Registers of all threads of a CTA."""
        budget = self.registers
        return 32 * (COMMUNICATION_WARPS * budget.dispatch + LOADER_WARPS * budget.loader + self.math_warps * budget.epilogue)

    # --- plans
    @property
    def smem(self) -> EpSmemPlan:
        return self.smem_plan(self.num_stages)

    def smem_plan(self, num_stages: int) -> EpSmemPlan:
        gemm = self._gemm(2)  # not `gemm`, whose depth is not known yet
        return replace(self.plan_of(gemm.smem_plan(num_stages)), trace_warps=self._warps(gemm) if self.trace else 0)

    @abstractmethod
    def plan_of(self, gemm: Any) -> EpSmemPlan:
        """With what the kernel's communication warps add to its GEMM's."""


@dataclass(frozen=True)
class DispatchGemmConfig(EpConfig):
    """Tokens to the ranks of their experts, and Linear1 of them.

    token_saving   a rank fetches a token once, and writes it to the rows of all its experts; else once for each expert
    tail_sms       SMs, the last ones, whose communication warps fetch nothing: a token is stored to one row, from which they copy it to the
                   others, and they say when blocks are complete; 0: who fetches a token stores it to all of its rows
    token_sorting  a rank fetches tokens in the order of its experts; else in their own
    block_wise     a tile waits for the rows of its block; else for all rows of its expert
    """

    half: ClassVar[Half] = "dispatch"

    token_saving: bool = True
    token_sorting: bool = True
    block_wise: bool = True
    tail_sms: int = 0

    def check_fields(self) -> None:
        """Raises `ConfigError`."""
        for name in ("token_saving", "token_sorting", "block_wise"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        require_integers(self, "tail_sms")
        require(0 <= self.tail_sms < self.num_sms, "tail_sms", self.tail_sms, f"between 0 and {self.num_sms - 1}: some SM fetches tokens")
        saves = self.token_saving or not self.tail_sms
        require(saves, "tail_sms", self.tail_sms, "0 where a token is fetched for each of its rows")

    @property
    def stores_once(self) -> bool:
        """Whether who fetches a token stores it to one row."""
        return self.tail_sms > 0

    @property
    def keeps(self) -> Kept:
        return Kept.PLACES if self.stores_once else Kept.NOTHING

    @property
    def fetching_sms(self) -> int:
        """SMs whose communication warps fetch tokens: the first ones."""
        return self.num_sms - self.tail_sms

    def plan_of(self, gemm: Any) -> DispatchPlan:
        """With slots for a row of each communication warp."""
        row = self.problem.formats.activations.row_bytes(self.problem.hidden)
        chunk = next(n for n in range(MOST_CHUNK, 0, -ROW_ALIGNMENT) if row % n == 0)
        return DispatchPlan(gemm, chunk, min(row // chunk, MOST_SLOTS))

    @property
    def num_arrivals(self) -> int:
        """Counters of rows: one of each block, or of each expert."""
        return pool_rows(self.problem) // self.block_m if self.block_wise else self.problem.experts_per_rank

    @property
    def gemm_problem(self) -> GemmProblem:
        """Linear1: gate and up of every row."""
        p = self.problem
        return GemmProblem(2 * p.intermediate, p.hidden, MASKED, p.experts_per_rank, recipe=p.recipe)


@dataclass(frozen=True)
class GemmCombineConfig(EpConfig):
    """Linear2 of the received rows, and on every token's rank the sum of its results, each times its top-k weight.

    scatter  a tile's results go to the tokens' ranks as soon as they are computed; else they stay, which takes memory for all rows, and
             the tokens' ranks fetch them when all tiles are done
    interleaved   the epilogue of a tile sends its results, between its tile and the next; else they stay in this rank, as without
                  scatter, until communication warps send them
    token_blocks  parts of a row, of as many tiles each, that communication warps wait for and send on their own
    """

    half: ClassVar[Half] = "combine"

    scatter: bool = True
    interleaved: bool = True
    token_blocks: int = 1

    def check_fields(self) -> None:
        for name in ("scatter", "interleaved"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        require(self.scatter or self.interleaved, "interleaved", self.interleaved, "True without scatter: nothing is sent")
        require_integers(self, "token_blocks")
        require(self.serial or self.token_blocks == 1, "token_blocks", self.token_blocks, "1 where the epilogue sends results, or nobody")
        tiles = self.gemm_problem.n // self.block_n
        whole = self.token_blocks >= 1 and self.gemm_problem.n % (self.block_n * self.token_blocks) == 0
        divides = f"a divisor of {tiles}, the whole tiles of a row, of which there is no part"
        require(whole or not self.serial, "token_blocks", self.token_blocks, divides)

    @property
    def keeps(self) -> Kept:
        return Kept.NOTHING if self.scatter and self.interleaved else Kept.RESULTS

    @property
    def serial(self) -> bool:
        """Whether communication warps send them."""
        return self.scatter and not self.interleaved

    @property
    def tiles_of_part(self) -> int:
        """Of a part of a row, where results are kept."""
        return self.gemm_problem.n // self.block_n // self.token_blocks

    @property
    def tile_warps(self) -> int:
        """Warps that have a part of a tile's results."""
        return self.math_warps

    @property
    def part_bytes(self) -> int:
        """The same in bytes of BF16."""
        return 2 * self.block_n * self.tiles_of_part

    @property
    def num_finished(self) -> int:
        return pool_rows(self.problem) // self.block_m * self.token_blocks

    def plan_of(self, gemm: Any) -> CombineSmemPlan:
        return CombineSmemPlan(gemm, CombinePlan(self.problem.hidden, self.problem.topk, COMMUNICATION_WARPS, budget=COMBINE_BYTES))

    @property
    def gemm_problem(self) -> GemmProblem:
        p = self.problem
        return GemmProblem(p.hidden, p.intermediate, MASKED, p.experts_per_rank, recipe=p.recipe)
