"""How it is computed on SM90: a tile of D has gathered columns as the wgmma's rows and sorted columns as its columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ....hardware.operand_tile import K_ROWS
from ....hardware.tensor_map import MapFields, TensorMapDtype
from ....target import Target
from ..config import GemmConfig
from ..epilogue import Store
from ..rows import ListedRows
from ..tile import SWAPPED_COLUMNS, TileShape, operand_rows
from ..weights import WholeRows
from .problem import VarlenKProblem

ADDED_COLUMNS, WARP_ROWS = 32, 16
"""Sorted columns that a warp adds to an FP32 D at a time, and its gathered ones."""
TILE_COLUMNS = (256, 192, 128)
"""Sorted columns of a tile, the fastest first."""


@dataclass(frozen=True)
class GatheredColumns(ListedRows):
    """Two warps gather rows of K, each half warp 256 bytes of one."""

    def load(self, ctx: Any, number: Any) -> None:
        """What warp `number` of those that gather does."""
        from .load import gather_columns

        gather_columns(ctx, number)


@dataclass(frozen=True)
class SortedColumns(WholeRows):
    """One warp loads rows of K with TMA, a box for every 64 columns; of a last stage with fewer rows it copies them, so that rows of
    the next group stay out."""

    map_names: ClassVar[tuple[str, ...]] = ("weights",)
    arrivals: ClassVar[int] = 32
    """Every lane's."""
    mn_major: ClassVar[tuple[bool, bool]] = (True, True)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """Fields of the tensor maps, by name."""
        return {"weights": operand_rows(args.b, 2 * config.problem.sorted_columns, args.m, K_ROWS)}

    def load(self, ctx: Any) -> None:
        """What the weight loader does."""
        from .load import load_columns

        load_columns(ctx)


@dataclass(frozen=True)
class TransposedTile(TileShape):
    """A tile whose rows are columns of D."""

    @property
    def store_columns(self) -> int:
        return SWAPPED_COLUMNS

    @property
    def store_rows(self) -> int:
        return K_ROWS

    def boxes(self, half: bool) -> int:
        """How many of them a warp stores of a tile."""
        return self.columns(half) // self.store_rows


@dataclass(frozen=True)
class StoreTransposed(Store):
    """Sums go to D, whose columns are the wgmma's rows."""

    def finish(self, config: Any) -> Callable[..., Any]:
        """What a warp does with the sums of a tile."""
        from .store import finish_transposed

        return finish_transposed


@dataclass(frozen=True)
class AddSums(Store):
    """TMA adds FP32 sums to D, each once.  transposes: D's columns are the wgmma's rows."""

    transposes: bool

    @property
    def box(self) -> tuple[int, int]:
        """Columns and rows of D that a warp adds at a time."""
        return (SWAPPED_COLUMNS, ADDED_COLUMNS) if self.transposes else (ADDED_COLUMNS, WARP_ROWS)

    @property
    def swizzle(self) -> int:
        return 4 * self.box[0]

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """Fields of the tensor map of D."""
        columns = config.problem.d_columns
        return {"d": MapFields(args.d, TensorMapDtype.F32, (columns, args.d_rows), (4 * columns,), self.box, self.swizzle)}

    def finish(self, config: Any) -> Callable[..., Any]:
        """What a warp does with the sums of a tile."""
        from .store import add_sums

        return add_sums


@dataclass(frozen=True)
class VarlenKConfig(GemmConfig):
    """As `GemmConfig`, of which these count:

    block_m  gathered columns of a tile: 128
    block_n  sorted columns: a multiple of 64 up to 256
    """

    recipes: ClassVar[tuple[str, ...]] = ("bf16xbf16",)

    problem: VarlenKProblem
    block_m: int = 128
    block_n: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("problem", isinstance(self.problem, VarlenKProblem), "a VarlenKProblem")
        self.require("block_m", self.block_m == 2 * K_ROWS, f"{2 * K_ROWS} where K are rows")
        self.require("block_n", self.block_n % K_ROWS == 0, f"a multiple of {K_ROWS} where K are rows")
        self.require("swap_ab", not self.swap_ab, "False where K are rows")
        self.require("half_tiles", not self.half_tiles, "False where K are rows")

    @classmethod
    def choose(cls, problem: Any, target: Target, rows: int, *, batch_invariant: bool = False, **fields: Any) -> Self:
        """The tile that wastes the fewest sorted columns, of equal ones the largest; `fields` replace what is chosen."""
        problem.check_rows(rows)
        columns = problem.sorted_columns
        block_n = min(TILE_COLUMNS, key=lambda one: -(-columns // one) * one)
        return cls(problem, num_sms=target.num_sms, **{"block_n": block_n, "dynamic_schedule": True, **fields})

    @property
    def tile(self) -> TileShape:
        """Shape, and how warpgroups share it."""
        kind = TransposedTile if self.problem.transposes else TileShape
        return kind(self.block_m, self.block_n, self.warpgroups, False, False, False, self.most_columns)

    @property
    def n_blocks(self) -> int:
        """Sorted columns make so many blocks, of which the last may be partial."""
        return -(-self.problem.sorted_columns // self.block_n)

    @property
    def rows(self) -> GatheredColumns:
        """Who brings gathered rows."""
        return GatheredColumns(1)

    @property
    def weights(self) -> SortedColumns:
        """Who brings sorted rows."""
        return SortedColumns()

    @property
    def epilogue(self) -> Store:
        if self.problem.accumulate:
            return AddSums(self.epilogue_buffers, self.problem.transposes)
        return (StoreTransposed if self.problem.transposes else Store)(self.epilogue_buffers)
