"""How a GEMM is computed on SM90: tile, warpgroups, cluster, tile order and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...arch import SM90, Arch
from ...hardware.operand_tile import K_ROWS
from .base_config import BaseGemmConfig
from .epilogue import ActivateGateUp, AddSums, GateUpGradient, Store, StoreTransposed
from .problem import BF16, GATE_FIRST, PACKED, UP_FIRST, GemmProblem
from .rows import GatheredColumns, ListedRows, LoadedRows, SummedRows
from .smem_plan import gemm_plan
from .tile import GROUP_ROWS, MOST_COLUMNS, WARPS_PER_GROUP, TileShape, TransposedTile
from .weights import DecodedWeights, GateUpRows, PackedWeights, ScaledColumns, SortedColumns, TransposedWeights, WholeRows

ROWS = (64, 128, 192)
MOST_SWAPPED_ROWS = 64
SWAPPED_COLUMNS = (64, 128, 256)
MOST_AHEAD = 8
MOST_THREADS = 384  # that begin with registers enough for a wgmma with 256 columns
BURSTS = (1, 2, 4)
LOADER_WARPS = 4
OTHER_REGISTERS = 32  # of a math thread: addresses, scales, the tile
NUM_SMS = 132  # of an H200

REGISTERS = {1: {"loader": 40, "math": 232}, 2: {"loader": 40, "math": 232}, 3: {"loader": 32, "math": 160}}
"""Per thread of each group of warps after `setmaxnreg`, multiples of 8, by math warpgroups."""
GATHERING_REGISTERS = {1: {"loader": 40, "math": 232, "gather": 56}, 2: {"loader": 24, "math": 224, "gather": 40}}
"""The same where rows of A are gathered: a thread that gathers keeps up to 8 of them."""
DECODE_REGISTERS = {"loader": 24, "math": 216, "decode": 56}
DECODED_TILES = ((128, 256), (256, 128))
"""Rows of A by rows of B of tiles with B decoded into shared memory: both have as many sums a thread, the second decodes half as much."""


def pairs_tiles(problem: Any, block_m: int, block_n: int) -> bool:
    """Whether K runs over rows of groups and a group's tiles pair up with equal columns, of which each CTA of a cluster fetches half."""
    return bool(problem.sums_rows and -(-problem.tile_rows // block_m) % 2 == 0 and block_n % (2 * K_ROWS) == 0)


@dataclass(frozen=True)
class GemmConfig(BaseGemmConfig):
    """Compile-time choices; raises `ConfigError` where a field is out of range."""

    arch: ClassVar[Arch] = SM90
    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp8", "fp8xmxfp4", "bf16xbf16")
    smem_plan = gemm_plan

    problem: GemmProblem
    block_m: int  # rows of A in a tile: 64, 128 or 192; with swap_ab a multiple of 8 up to 64; with 4-bit weights and no swap_ab 128 or 256
    block_n: int  # rows of B in a tile: a multiple of 8 up to 256 that meets at most two rows of scales; with swap_ab 64, 128 or 256
    num_sms: int = NUM_SMS  # CTAs of the grid
    # math warpgroups: one for each 64 rows; with 64 rows or swap_ab 1, or 2 that share the rows of B; 0 chooses the usual number
    warpgroups: int = 0
    cluster: int = 1  # CTAs that share loads of neighboring tiles: 1 or 2
    group_m: int = 8  # row blocks of a group in the grouped tile order
    swap_ab: bool = False  # rows of A are the wgmma's columns
    half_tiles: bool = False  # both warpgroups share a tile of 128 rows if at most 64 of its rows are valid
    k_in_flight: int = 1  # K blocks that a warpgroup keeps in flight in the tensor core, 1 to 8; more than 1 only in narrow tiles
    dynamic_schedule: bool = False  # tiles are scheduled at run time; otherwise CTAs take them round-robin
    num_stages: int = 0  # depth of the TMA ring; 0 chooses the deepest that fits
    # D buffers of a warp in SMEM: 2, one filled while TMA reads the other, or 1, which may leave room for a stage
    epilogue_buffers: int = 2
    split_k: bool = False  # the two CTAs of a cluster each multiply half of K of one tile, then exchange sums (store.py)
    burst: int = 1  # K blocks of B that the loader requests at once, 1, 2 or 4: faster where tiles are memory-bound
    # the scheduler and the weight loader start before the previous kernel ends (PDL).  That kernel must let this one begin after its own
    # wait (`begin_after_others` of blocks/cta.py), not write B or `groups`, and use another `counter`
    prefetch_weights: bool = False
    trace: bool = False  # warps record time stamps for profiles (layouts/records.py); only in gather_gemm
    most_columns: int = 0  # largest N of a wgmma: 256, or 128, which four warpgroups have registers for; 0 chooses

    def __post_init__(self) -> None:
        self.check_problem()
        problem, own = self.problem, self.problem.of_experts
        self.require("problem.recipe", not (own and problem.decodes), "one whose B is loaded as it is, over the rows of experts")
        self._check_tile()
        self.require_any("cluster", (1, 2))
        self._check_split()
        added = not problem.biases or not (problem.decodes or self.split_k)
        self.require("problem.biases", added, "empty where B is decoded, or K split")
        shared = self.fetchers == 1 or (self.block_n % 16 == 0 and self.block_m % 16 == 0)
        self.only_where("cluster", shared, "where block_m or block_n is no multiple of 16: each CTA fetches half of a tile")
        self.check_grid()
        early = problem.kind == PACKED and not (problem.decodes or own)
        self.only_where("prefetch_weights", early, "but for a packed problem whose B is loaded as it is")
        self.require_any("epilogue_buffers", (1, 2))
        self.epilogue.check(self)
        alone = own and (problem.places_rows or not (problem.gathers or problem.sums_rows))
        self.only_where("cluster", not alone, "where rows of experts are sorted before, or blocked")
        if problem.sums_rows or any(self.weights.mn_major):
            self._check_rows_of_k()
        self.check_stages("block_n")
        self._check_burst()

    def _check_tile(self) -> None:
        self.require("block_m", not self.problem.gathers or self.block_m <= 128, "at most 128 where rows are gathered")
        if self.problem.decodes:
            self._check_decoding()
        if self.swap_ab:
            rows = 8 <= self.block_m <= MOST_SWAPPED_ROWS and self.block_m % 8 == 0
            self.require("block_m", rows, f"a multiple of 8 up to {MOST_SWAPPED_ROWS} with swap_ab")
            self.require("block_n", self.block_n in SWAPPED_COLUMNS, f"one of {list(SWAPPED_COLUMNS)} with swap_ab")
            groups = tuple(n for n in (1, 2) if self.block_n // n in (GROUP_ROWS, 2 * GROUP_ROWS))
        else:
            self.require("block_m", self.block_m in ROWS or self.is_tall, f"one of {list(ROWS)}")
            columns = 8 <= self.block_n <= MOST_COLUMNS and self.block_n % 8 == 0
            self.require("block_n", columns, f"a multiple of 8 up to {MOST_COLUMNS}")
            groups = (1, 2) if self.block_m == GROUP_ROWS else (2,) if self.is_tall else (self.block_m // GROUP_ROWS,)
        if self.warpgroups == 0:
            object.__setattr__(self, "warpgroups", groups[-1])
        self.require("warpgroups", self.warpgroups in groups, f"one of {list(groups)} for this tile, or 0 for the last of them")
        self.require_between("k_in_flight", 1, MOST_AHEAD)
        self.only_where("k_in_flight", self.tile.scaled, f"with {self.problem.recipe}, whose sums stay in the tensor core")
        self.only_where("half_tiles", self.block_m == 2 * GROUP_ROWS and not self.swap_ab, "unless block_m is 128")
        for half in {False, self.half_tiles}:
            self._check_columns(half)

    def _check_decoding(self) -> None:
        problem = self.problem
        tiles = self.swap_ab or (self.block_m, self.block_n) in DECODED_TILES
        allowed = " or ".join(f"{m} x {n}" for m, n in DECODED_TILES)
        self.require("block_m, block_n", tiles, f"{allowed} with {problem.recipe} and without swap_ab")
        least = f"128 or less for a {problem.kind} problem with {problem.recipe}: TMA fetches up to 256 scales"
        self.require("block_m", not (self.is_tall and problem.any_row), least)
        self.only_where("k_in_flight", False, f"with {problem.recipe}, whose next block is decoded meanwhile")
        self.only_where("cluster", self.split_k, f"with {problem.recipe}, or 2 that have a half of K each")

    def _check_split(self) -> None:
        problem = self.problem
        can_split = self.cluster == 2 and self.warpgroups <= 2 and not self.half_tiles and self.swap_ab == problem.decodes
        without = "with swap_ab" if problem.decodes else "without swap_ab and halves"
        self.only_where("split_k", can_split, f"but for clusters of two and at most two warpgroups, {without}")
        self.only_where("split_k", problem.k_blocks > 1, f"where K = {problem.k} is one block of {problem.k_block}")

    def _check_burst(self) -> None:
        blocks = self.problem.k_blocks
        self.require("burst", self.burst in BURSTS, f"one of {list(BURSTS)}")
        self.only_where("burst", self.cluster == 1 and not self.problem.decodes, "in clusters, or where B is decoded")
        self.require("burst", blocks % self.burst == 0, f"a divisor of the {blocks} K blocks")
        # Math warps hold up to `k_in_flight` stages while they wait for the next, which comes with a whole burst.
        left = self.num_stages - self.k_in_flight
        fits = self.burst == 1 or self.burst <= left
        self.require("burst", fits, f"1, or at most {left}: what {self.k_in_flight} ahead leave of the stages")

    def _check_rows_of_k(self) -> None:
        sums = self.problem.sums_rows
        where = "where K are the rows of groups" if sums else "where rows of shared memory are K"
        self.require("block_n", self.tile.columns(self.half_tiles) % K_ROWS == 0, f"a multiple of {K_ROWS} for each warpgroup {where}")
        for field in ("swap_ab", "split_k", "burst", *(("half_tiles",) if sums else ())):
            self.only_where(field, False, where)
        self.require("block_m", not sums or self.block_m == 2 * K_ROWS, f"{2 * K_ROWS} {where}")
        boxes = self.block_n % (2 * K_ROWS) == 0
        pairs = boxes and (not sums or (pairs_tiles(self.problem, self.block_m, self.block_n) and self.group_m % 2 == 0))
        self.only_where("cluster", pairs, "where rows of tiles make an odd number of them, or columns of a tile of boxes")

    def _check_columns(self, half: bool) -> None:
        tile, chunks = self.tile, self.tile.chunks(half)
        whole = tile.n % tile.warpgroups == 0 if tile.shares_rows(half) else True
        fits = whole and tile.columns(half) % (8 * chunks) == 0
        self.require("block_n", fits, "a multiple of 8 for each warpgroup, and for each of its parts")
        self.only_where("k_in_flight", chunks == 1, "where a warpgroup multiplies its columns in several parts")
        values = (self.block_m if self.swap_ab else tile.columns(half) // chunks) // 2
        partials = chunks if self.problem.decodes and self.swap_ab else self.k_in_flight if tile.scaled else 0
        scales = self.k_in_flight * self.weights.thread_scales(tile.columns(half) // chunks)
        needed, most = values * (chunks + partials) + scales + OTHER_REGISTERS, self.registers["math"]
        room = needed <= most or self.weights.decode_warps > 0
        self.require("k_in_flight", room, f"such that all sums fit {most} registers of a thread: they take {needed}")
        self.require("block_n", self.weights.scale_rows(tile) <= 2, "such that a tile needs at most two rows of B's scales")

    # --- tiles
    @property
    def tile(self) -> TileShape:
        scaled, columns = self.problem.formats.scaled, self.most_columns or MOST_COLUMNS // (1 + (self.num_threads > MOST_THREADS))
        kind = TransposedTile if self.problem.transposes else TileShape
        return kind(self.block_m, self.block_n, self.warpgroups, self.swap_ab, self.half_tiles, scaled, columns)

    fetchers = blocks_per_fetch = property(lambda self: 1 if self.split_k else self.cluster)

    @property
    def most_k_blocks(self) -> int:
        """K blocks of a tile that a CTA multiplies; with `split_k` and an odd number the second CTA multiplies one less."""
        return -(-self.problem.k_blocks // self.cluster) if self.split_k else self.problem.k_blocks

    @property
    def is_tall(self) -> bool:
        """Whether a warpgroup multiplies two chunks of 64 rows of A with the same decoded B."""
        return self.problem.decodes and not self.swap_ab and self.block_m > self.block_n

    # --- parts
    @property
    def rows(self) -> LoadedRows | ListedRows:
        problem = self.problem
        if problem.sums_rows:
            return GatheredColumns(1) if problem.gathers else SummedRows()
        if not problem.gathers:
            return LoadedRows(problem.any_row)
        # With swap_ab a thread reads scales of rows that follow one another.
        return ListedRows(1 if self.swap_ab else problem.scales_at_once)

    @property
    def weights(self) -> WholeRows:
        if self.problem.decodes:
            return PackedWeights() if self.swap_ab else DecodedWeights(self.is_tall)
        if self.problem.sums_rows:
            return SortedColumns() if self.problem.gathers else ScaledColumns()
        if self.problem.transposed_b:
            return TransposedWeights(self.block_n // K_ROWS)
        apart = self.problem.gate_up in (GATE_FIRST, UP_FIRST)
        return GateUpRows(self.problem.gate_up == UP_FIRST) if apart else WholeRows()

    @property
    def epilogue(self) -> Store:
        if self.problem.gate_up:
            return ActivateGateUp(idles=self.warpgroups > 1)
        if self.problem.gradient:
            return GateUpGradient.of(self.tile, self.table_entries)
        if self.problem.sums_rows and self.problem.accumulate:
            return AddSums(self.epilogue_buffers, self.problem.transposes)
        if self.problem.transposes:
            return StoreTransposed(self.epilogue_buffers)
        return Store(self.epilogue_buffers if self.problem.output == BF16 else 0)

    @property
    def map_names(self) -> tuple[str, ...]:
        if self.problem.of_experts:
            weights = (name for name in self.weights.map_names if self.cluster > 1 or name != "weights_part")
            return (*weights, "d", *self.rows.map_names)
        return ("tokens", "tokens_part", *self.weights.map_names, "sfa", "d")

    # --- threads and registers
    math_warps = property(lambda self: WARPS_PER_GROUP * self.warpgroups)

    @property
    def num_threads(self) -> int:
        return 32 * (LOADER_WARPS + self.math_warps + self.weights.decode_warps + self.rows.own_warps)

    @property
    def registers(self) -> dict[str, int]:
        if self.weights.decode_warps:
            return DECODE_REGISTERS
        if self.problem.sums_rows and self.problem.gathers:
            return {"loader": 56, "math": 224}
        return (GATHERING_REGISTERS if self.problem.gathers else REGISTERS)[self.warpgroups]

    # --- what tables say
    @property
    def tile_facts(self) -> list[tuple[str, object]]:
        tile, split = self.tile, f"a half for each CTA of a cluster, at most {self.most_k_blocks} blocks"
        side = "rows of A are the wgmma's columns" if tile.swap_ab else "rows of A are its rows"
        return [
            ("tile", f"{tile.m} x {tile.n} x {self.problem.k_block} on {tile.warpgroups} warpgroups; {side}"),
            ("K blocks in the tensor core", self.k_in_flight if tile.scaled else "2, whose sums stay there"),
            *((("K", split),) if self.split_k else ()),
            *((("K blocks of B asked for at once", self.burst),) if self.burst > 1 else ()),
        ]

    @property
    def sharing(self) -> str:
        share = f", which share rows of {'A' if self.tile.shares_rows(False) else 'B'}" if self.warpgroups > 1 else ""
        return f"{self.warpgroups}{share}"
