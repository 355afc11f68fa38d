"""The tile of a GEMM on SM90: how warpgroups share it, and the TMA boxes of its operands and results."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, sqrt
from typing import Any, ClassVar

from ...hardware.operand_tile import K_ROWS, ROW_BYTES
from ...hardware.tensor_map import MapFields, TensorMapDtype
from .problem import SCALE_BLOCK, GemmProblem

WARPS_PER_GROUP = 4
GROUP_ROWS = 64  # of a wgmma
MOST_COLUMNS = 256  # of a wgmma
MOST_CHUNK = 192  # columns of a wgmma whose partial sums and sums fit a thread's registers
STORE_SPANS = (128, 64, 32)  # bytes of a row of D that one TMA box holds, swizzled
SCALE_STEP = 4  # rows: scales that TMA fetches begin at a multiple of 16 bytes
SWAPPED_COLUMNS = 16  # of D, which a warp has where rows of A are the wgmma's columns
ADDED_COLUMNS, ADDED_ROWS = 32, 16  # of a tile, which a warp adds to an FP32 D at a time
WORK_TILES = 2  # tiles handed out to a CTA that not all of its roles have read
VECTOR = 4  # sums that a thread sends at a time
EXCHANGING_THREADS = 128  # of the warpgroup of a CTA that finishes what both CTAs have summed
GATHER_WARPS = 4
"""Warps that gather rows and their scales: TMA takes gather4 from one thread of a warp at a time."""
LANES = 32
"""Experts of a run: a warp finds a tile's expert by two ballots, among the last sums of runs and among the experts of one."""
MOST_TILES = (1 << 16) - 1  # row blocks of all experts, whose sums have 16 bits
LISTS = 2  # lists of rows in shared memory: of the tile that is gathered, and of the next


def room(mean: float) -> float:
    """Rows that almost no group exceeds if routing is random with this mean: 2.5 standard deviations above it."""
    return mean + 2.5 * sqrt(mean)


@dataclass(frozen=True)
class TileShape:
    """`m` rows of A by `n` rows of B on `warpgroups` warpgroups."""

    m: int
    n: int
    warpgroups: int
    swap_ab: bool  # rows of A are the wgmma's columns
    half_tiles: bool  # a tile of 128 rows that has no more than 64 is multiplied as one of 64, whose rows of B the warpgroups share
    scaled: bool  # operands have scales, so that partial sums leave the tensor core; else sums stay there
    most_columns: int = MOST_COLUMNS  # of a wgmma whose sums stay

    def shares_rows(self, half: bool) -> bool:
        """Whether all warpgroups have the same rows of A and different ones of B."""
        return half or self.swap_ab or self.m == GROUP_ROWS

    def columns(self, half: bool) -> int:
        return self.n // self.warpgroups if self.shares_rows(half) else self.n

    def chunks(self, half: bool) -> int:
        """Parts of a warpgroup's columns (with swap_ab, blocks of 64) that the tensor core computes one after another."""
        if self.swap_ab:
            return self.columns(half) // GROUP_ROWS
        return -(-self.columns(half) // (MOST_CHUNK if self.scaled else self.most_columns))

    @property
    def sums(self) -> int:
        return self.chunks(False) * (self.m if self.swap_ab else self.columns(False) // self.chunks(False)) // 2

    def scale_step(self, half: bool) -> int:
        """A warpgroup's first row of B is a multiple of this, counted within 128."""
        return gcd(self.n, self.columns(half), SCALE_BLOCK)

    def splits(self, half: bool) -> tuple[int, ...]:
        """Possible numbers of a warpgroup's columns before the next row of scales begins, in descending order."""
        columns, firsts = self.columns(half), range(0, SCALE_BLOCK, self.scale_step(half))
        if not self.scaled:
            return (columns,)
        return tuple(sorted({min(columns, SCALE_BLOCK - first) for first in firsts}, reverse=True))

    def scale_rows(self, half: bool) -> int:
        if not self.scaled:
            return 0
        return -(-(SCALE_BLOCK - self.scale_step(half) + self.columns(half)) // SCALE_BLOCK)

    @property
    def store_columns(self) -> int:
        """Columns of a BF16 box of D that a warp stores: as many of its columns as a swizzle spans."""
        if self.swap_ab:
            return SWAPPED_COLUMNS
        row = 2 * gcd(self.columns(False), self.columns(self.half_tiles))
        return next((span for span in STORE_SPANS if row % span == 0), row) // 2

    @property
    def store_swizzle(self) -> int:
        """Swizzle of that box in bytes; 0 if a row is an odd number of 16-byte chunks, which has no bank conflicts anyway."""
        return 2 * self.store_columns if 2 * self.store_columns in STORE_SPANS else 0

    @property
    def store_rows(self) -> int:
        return self.m if self.swap_ab else GROUP_ROWS // WARPS_PER_GROUP

    def boxes(self, half: bool) -> int:
        return self.chunks(half) if self.swap_ab else self.columns(half) // self.store_columns


@dataclass(frozen=True)
class TransposedTile(TileShape):
    """A tile whose rows are columns of D."""

    store_columns: ClassVar[int] = SWAPPED_COLUMNS
    store_rows: ClassVar[int] = K_ROWS

    def boxes(self, half: bool) -> int:
        return self.columns(half) // self.store_rows


L2_PROMOTION, BURST_PROMOTION = 256, 128
SHORT_ROW, SHORT_PROMOTION = 512, 128
"""Bytes of a row, up to which L2 is better asked for one K block at a time of many matrices B (docs/lab/one_gpu.md)."""
PARTS = 2  # of a tile that a CTA fetches: for both CTAs of a cluster, or because it has no more rows


def promotion(problem: GemmProblem, width: int) -> int:
    """L2 promotion in bytes for an operand with rows of `width` bytes."""
    short = problem.has_groups and not problem.of_experts and width <= SHORT_ROW
    return SHORT_PROMOTION if short else L2_PROMOTION


def operand_rows(address: Any, width: int, count: Any, box: int, swizzle: int = 128, l2: int = L2_PROMOTION) -> MapFields:
    """Tensor map of a byte matrix with boxes of `box` rows by 128 bytes."""
    return MapFields(address, TensorMapDtype.U8, (width, count), (width,), (ROW_BYTES, box), swizzle, l2)


def transposed_side(names: tuple[str, ...], codes: Any, scales: Any, columns: int, rows: Any, box: int) -> dict[str, MapFields]:
    """Tensor maps, by `names`, of a transposed operand: `box` of its columns, a part of them, and their FP32 scales, one per 128 rows."""
    of_scales = MapFields(scales, TensorMapDtype.F32, (columns, rows // SCALE_BLOCK), (4 * columns,), (box, 1), 0, L2_PROMOTION)
    whole, some = (operand_rows(codes, rows, columns, one) for one in (box, part(box)))
    return dict(zip(names, (whole, some, of_scales), strict=True))


def part(rows: int) -> int:
    return max(rows // PARTS, 1)
