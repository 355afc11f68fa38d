"""How the two halves of an expert-parallel layer are computed: the tile of the GEMM, and how tokens travel; their routing tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Self

from ....arch import ARCH_BY_NAME, ARCHES, SM90
from ....blocks.gemm.arguments import GemmArguments
from ....blocks.gemm.config import LOADER_WARPS, NUM_SMS
from ....blocks.gemm.problem import MASKED, GemmProblem
from ....config_error import CheckedConfig
from ....hardware.tensor_map import MapFields
from ....layouts.arith import ceil_div
from ....layouts.region import PLAN_OF_RING, U8, U32, Field, MBarrier, Region, SharedPlan, deepest_ring, most_that_fit
from ....problem import Problem
from ...kernel import with_fields
from ..config import require_whole_tiles
from ..layouts.smem_plan import CombinePlan, CombineRow, SmemPlan
from .gemm_part import GATE_UP, PARTS, STORED, GroupedGemm, pooled_problem
from .layouts.symmetric import MOST_TABLES_CTAS, EpLaunch, Kept, field_address, pool_rows, symmetric_buffer

HALVES = ("dispatch", "combine")
ROW_ALIGNMENT = 128
MOST_SLOTS = 4
MOST_CHUNK = 2048  # bytes of a row that one bulk copy moves; all chunks of a row are on their way at a time
MOST_TASK_TOKENS = 32  # a lane each
COMBINE_BYTES = 40 * 1024  # of slots, beside a ring of three stages
COMMUNICATION_WARPS = 4
WARP = "the communication warp"


@dataclass(frozen=True)
class EpConfig(CheckedConfig):
    """Compile-time choices of both kernels; raises `ConfigError` where a field is out of range.  Each half also has `keeps`, fields of the
    symmetric buffer that only it needs; `slots` of its communication warps, with barriers; and `operands` of its GEMM."""

    arch = ARCH_BY_NAME
    launch: ClassVar[EpLaunch]
    row_arguments: ClassVar[tuple[str, ...]] = ()  # what else than `out` a dispatch reads or writes by rows, for a backward pass or in it

    problem: Problem
    block_m: int = 128  # rows of a tile: 64 or 128; on SM100 32, 64, 128 or 192
    block_n: int = 256  # weight rows of a tile: 64, 128 or 256; on SM100 256 for a CTA pair
    num_sms: int = NUM_SMS  # CTAs of the grid
    num_stages: int = 0  # depth of the TMA ring; 0 chooses the deepest that fits
    cluster: int = 0  # CTAs that share loads of neighboring tiles: 1 or 2; on SM100 2, the CTA pair; 0 chooses the least
    task_tokens: int = 4  # tokens that a communication warp takes at a time
    trace: bool = False  # warps record time stamps for profiles (layouts/records.py)
    arch_name: str = SM90.name
    # a launch of the backward pass: dispatch brings dY and multiplies it with W2, combine multiplies dH with W1; BF16, clusters of 1
    transposed: bool = False

    def __post_init__(self) -> None:
        self.check_declared(Problem)
        self.require_any("arch_name", PARTS)
        part, least = self.part, min(self.part.allowed["cluster"])
        self.require_any("problem.recipe", part.recipes, f" for {self.arch}")
        require_whole_tiles(self, "in halves of the layer")
        self.require("problem.biases", not self.problem.biases, "False: the linears have none")
        self.require_any("problem.combine", ("bf16",))
        object.__setattr__(self, "cluster", self.cluster or least)
        for name, values in part.allowed.items():
            self.require(name, getattr(self, name) in values, f"one of {list(values)} for {self.arch}")
        self.require("cluster", self.cluster == least or not self.transposed, f"{least} in a backward pass")
        self.check_clusters()
        self.require_between("task_tokens", 1, MOST_TASK_TOKENS)
        self.check_fields()
        self.check_depth(deepest_ring(self), "block_n")

    @property
    def reads(self) -> str:
        """Which of the weights a launch multiplies with."""
        return "fc1" if (self.launch == EpLaunch.DISPATCH) != self.transposed else "fc2"

    @property
    def backward(self) -> Self:
        """The launch of the backward pass on the same symmetric buffer.  Raises `ConfigError`."""
        return self.replace(transposed=True, cluster=min(self.part.allowed["cluster"]), num_stages=0)

    symmetric = property(lambda self: symmetric_buffer(self.problem, self.keeps))

    # --- the GEMM
    tmem, map_names = property(attrgetter("gemm.tmem")), property(attrgetter("gemm.map_names"))
    registers = property(attrgetter("part.registers"))

    def maps(self, args: Any) -> list[MapFields]:
        return self.gemm.maps(self.gemm_arguments(args))

    part = property(lambda self: PARTS[self.arch_name])

    @property
    def gemm_problem(self) -> GemmProblem:
        p = self.problem
        n, k = (2 * p.intermediate, p.hidden) if self.reads == "fc1" else (p.hidden, p.intermediate)
        n, k = (k, n) if self.transposed else (n, k)
        return GemmProblem(n, k, MASKED, p.experts_per_rank, recipe=p.recipe, transposed_b=self.transposed)

    @cached_property
    def gemm(self) -> GroupedGemm:
        return self.part.gemm(self, self.num_stages)

    def gemm_arguments(self, args: Any) -> GemmArguments:
        """Those of the GEMM, traced or integers as the kernel's `args` are: the same for a launch, a kernel and the driver.  Where experts'
        rows lie is in the table that the scheduler makes."""
        counter, rows, no_groups = field_address(self, args.sym, "tile_counter"), pool_rows(self.problem), 0
        (acts, scales, out), own = self.operands(args), {"d_rows": rows, **{name: getattr(args, name) for name in self.row_arguments}}
        places = acts, scales, args.weights, args.weights_sf, out, no_groups, counter
        return with_fields(GemmArguments, *own)(*places, rows, rows, **own)  # type: ignore[no-any-return]

    # --- threads and registers
    math_warps = property(lambda self: self.gemm.num_threads // 32 - LOADER_WARPS)
    num_threads = property(lambda self: self.gemm.num_threads + 32 * COMMUNICATION_WARPS)

    @property
    def register_total(self) -> int:
        warps = {"communication": COMMUNICATION_WARPS, "loader": LOADER_WARPS, "math": self.math_warps}
        return 32 * sum(warps[group] * count for group, count in self.registers.items())

    @property
    def facts(self) -> list[tuple[str, object]]:
        order = ("order", f"tasks handed out at run time, {self.gemm.group_m} row blocks together")
        return [self.gemm.tile_facts[0], order, ("stages", self.num_stages)]

    # --- plans
    smem = PLAN_OF_RING

    def smem_plan(self, num_stages: int) -> SmemPlan:
        """The GEMM's plan, and buffers of communication warps.  epoch: launches before this one; trace_count: stamps of a traced warp."""
        gemm = self.part.gemm(self, 2)  # not `gemm`, whose depth is not known yet
        warps, plan, (slots, barrier, combine) = gemm.num_threads // 32 + COMMUNICATION_WARPS, gemm.smem_plan(num_stages), self.slots
        words = Field("epoch", (1,), U32), barrier.field, Field("trace_count", (warps if self.trace else 0,), U32)
        return SmemPlan(Region.stack("smem", plan.region, slots, *words), (*plan.barriers, barrier), combine)


@dataclass(frozen=True)
class DispatchGemmConfig(EpConfig):
    """Tokens to the ranks of their experts, and Linear1 of them."""

    launch = EpLaunch.DISPATCH

    token_saving: bool = True  # a rank fetches a token once and writes it to the rows of all its experts; otherwise once for each expert
    token_sorting: bool = True  # a rank fetches tokens in the order of its experts; otherwise in token order
    block_wise: bool = True  # a tile waits for the rows of its block; otherwise for all rows of its expert
    tail_sms: int = 0  # SMs at the end of the grid that fetch no tokens, but copy received ones to the rows of their other experts
    gate_up: str = STORED  # what leaves of gate and up: they are stored for the caller to activate, or activated
    # a backward pass follows: the top-k weights of rows are stored, and gate and up too where they are activated
    trains: bool = False

    def check_fields(self) -> None:
        """Raises `ConfigError` for choices of dispatch that are out of range or contradict one another."""
        self.require_between("tail_sms", 0, self.num_sms - 1, ": some SM fetches tokens")
        self.only_where("tail_sms", self.token_saving, "where a token is fetched for each of its rows")
        self.require("gate_up", self.gate_up in GATE_UP, "one of " + ", ".join(GATE_UP))
        self.only_where("trains", not self.transposed, "in a backward pass")
        p, own = self.problem, self.gate_up != STORED
        self.require("problem.activation_clamp", own or p.activation_clamp is None, "None: the activation is the caller's")
        self.require("problem.recipe", not (own and p.formats.scaled), "bf16xbf16 where gate and up are activated")
        if atom := self.part.scale_rows:
            most = f"at most {atom}: an expert's rows begin at a multiple of it, and those after them may be on their way"
            self.require("block_m", self.block_m <= atom, most)
            whole = self.block_m == atom or not (self.block_wise and p.formats.scaled)
            self.require("block_wise", whole, f"False, or block_m = {atom}: scales of {atom} rows are fetched together")

    @property
    def gemm_problem(self) -> GemmProblem:
        plain = super().gemm_problem
        return plain if self.gate_up == STORED else pooled_problem(plain, self.problem, self.trains)

    @property
    def row_arguments(self) -> tuple[str, ...]:  # type: ignore[override]
        activated = self.gate_up != STORED
        if self.transposed:
            return ("gate_up", "row_weights", "weighted", "dots") if activated else ()
        return ("row_weights", *["preactivations"] * activated) if self.trains else ()

    keeps = property(lambda self: Kept.PLACES if self.tail_sms > 0 else Kept.NOTHING)
    fetching_sms = property(lambda self: self.num_sms - self.tail_sms)  # the first ones, whose communication warps fetch tokens

    @property
    def slots(self) -> tuple[Field, MBarrier, None]:
        """Chunks of a row for each communication warp."""
        row = self.problem.formats.activations.row_bytes(self.problem.hidden)
        chunk = next(n for n in range(MOST_CHUNK, 0, -ROW_ALIGNMENT) if row % n == 0)
        count = min(row // chunk, MOST_SLOTS)
        barrier = MBarrier("pull", COMMUNICATION_WARPS * count, 1, WARP, "one chunk of a token row", WARP)
        return Field("pull", (COMMUNICATION_WARPS, count, chunk), U8, 128), barrier, None

    # counters of rows: one of each block, or of each expert
    num_arrivals = property(lambda self: pool_rows(self.problem) // self.block_m if self.block_wise else self.problem.experts_per_rank)

    def operands(self, args: Any) -> tuple[Any, Any, Any]:
        """Addresses of rows of A, of their scales and of D: Linear1 of the rows that dispatch brings."""
        scales = field_address(self, args.sym, "fc1_sf") if self.problem.formats.scaled else 0
        return field_address(self, args.sym, "fc1_acts"), scales, args.out


@dataclass(frozen=True)
class GemmCombineConfig(EpConfig):
    """Linear2 of the received rows, and on every token's rank the sum of its results, each times its top-k weight."""

    launch = EpLaunch.COMBINE

    # each tile sends its results to the tokens' ranks; otherwise this rank keeps all rows, and the tokens' ranks fetch them after the
    # last tile
    scatter: bool = True
    # the epilogue sends results of a tile before the next tile; otherwise this rank keeps them until communication warps send them
    interleaved: bool = True
    token_blocks: int = 1  # equal parts of a row; communication warps wait for each part and send it separately

    def check_fields(self) -> None:
        """Raises `ConfigError` for choices of combine that are out of range or contradict one another."""
        self.only_where("interleaved", self.scatter, "without scatter: nothing is sent")
        self.only_where("token_blocks", self.serial, "where the epilogue sends results, or nobody")
        n = self.gemm_problem.n
        whole = not self.serial or (self.token_blocks >= 1 and n % (self.block_n * self.token_blocks) == 0)
        self.require("token_blocks", whole, f"a divisor of {n // self.block_n}, the whole tiles of a row, of which there is no part")
        if atom := self.part.scale_rows:
            divides = self.interleaved or atom % self.block_m == 0
            self.require("block_m", divides, f"a divisor of {atom} where tiles of a block of rows are counted")

    keeps = property(lambda self: Kept.NOTHING if self.scatter and self.interleaved else Kept.RESULTS)
    serial = property(lambda self: self.scatter and not self.interleaved)  # whether communication warps send results
    tiles_of_part = property(lambda self: self.gemm_problem.n // self.block_n // self.token_blocks)  # of a row, where results are kept
    part_bytes = property(lambda self: 2 * self.block_n * self.tiles_of_part)  # bytes of BF16 that one part of a row has
    num_finished = property(lambda self: pool_rows(self.problem) // self.block_m * self.token_blocks)

    @property
    def slots(self) -> tuple[Field, MBarrier, CombinePlan]:
        """Sets of slots, with a barrier for each."""
        combine = CombinePlan(CombineRow(self.problem.hidden), self.problem.topk, COMMUNICATION_WARPS, COMBINE_BYTES)
        barrier = MBarrier("combine", combine.warps * combine.sets, 1, WARP, "one piece of a token's top-k results", WARP)
        return combine.field, barrier, combine

    def operands(self, args: Any) -> tuple[Any, Any, Any]:
        """The same of Linear2 of the caller's activations: D lies in the symmetric buffer, unless the epilogue sends results to peers."""
        return args.acts, args.acts_sf, field_address(self, args.sym, "kept" if self.keeps else "results")


WARPS = LANES = 32
AT_A_TIME = 4  # pairs of a lane whose experts are on their way from memory together


@lru_cache
def tables_region(experts: int) -> Region:
    """Shared memory.  rows, pulls: of each warp and expert, or list, how many, then the next place; sums: of warps; starts: of experts."""
    words = {"rows": (WARPS, experts), "pulls": (WARPS, experts), "sums": (WARPS,), "starts": (experts,)}
    return Region.stack("smem", *(Field(name, shape, U32, 16) for name, shape in words.items()))


@dataclass(frozen=True)
class RoutingTablesConfig(CheckedConfig):
    """Compile-time choices of the kernel; raises `ConfigError` where a field is out of range."""

    arch = ARCH_BY_NAME
    cluster: ClassVar[int] = 1
    launch: ClassVar[EpLaunch] = EpLaunch.TABLES
    num_threads: ClassVar[int] = LANES * WARPS

    problem: Problem
    token_saving: bool = True  # as in the `DispatchGemmConfig` of the dispatch that reads the tables
    token_sorting: bool = True  # as in that `DispatchGemmConfig`
    arch_name: str = SM90.name

    def __post_init__(self) -> None:
        self.check_declared(Problem)
        self.require_any("arch_name", ARCHES)
        most = min(self.num_threads, most_that_fit(lambda experts: tables_region(experts).size, self.arch.smem_bytes))
        few = self.problem.num_experts <= most
        self.require("problem.num_experts", few, f"at most {most}: each has a thread, and counters of all warps")

    @classmethod
    def of(cls, dispatch: DispatchGemmConfig) -> Self:
        """What makes the tables that such a dispatch reads."""
        return cls(dispatch.problem, dispatch.token_saving, dispatch.token_sorting, dispatch.arch_name)

    symmetric = property(lambda self: symmetric_buffer(self.problem))

    tokens_at_a_time = property(lambda self: LANES // self.problem.topk)  # that a warp sorts, with a lane for each of their slots
    # of a CTA whose warps each take one turn; with more, more CTAs make the tables, if there are any
    tokens_of_turn = property(lambda self: WARPS * AT_A_TIME * self.tokens_at_a_time)
    num_sms = property(lambda self: min(ceil_div(self.problem.max_tokens_per_rank, self.tokens_of_turn), MOST_TABLES_CTAS))
    smem = property(lambda self: SharedPlan(tables_region(self.problem.num_experts)))
