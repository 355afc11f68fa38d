"""Weight sources: how rows of B reach shared memory and which warps decode them, on SM90 and for CTA pairs on SM100."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...hardware.operand_tile import BLOCK_K, K_ROWS, OPERAND_ALIGNMENT, ROW_BYTES, SF_ATOM_ROWS
from ...hardware.packed_tile import ENTRY_BYTES, LINE_BYTES, SHIFTS, PackedPart, lines_of
from ...hardware.tensor_map import MapFields
from ...layouts.arith import align, minimum
from ...layouts.region import F32, U8, U32, Field, MBarrier
from ...lazy import find, late
from ..sm100.pair_stage import scale_words, weight_rows
from .problem import INTERLEAVED, GemmProblem
from .tile import BURST_PROMOTION, WARPS_PER_GROUP, TileShape, operand_rows, part, promotion, transposed_side


@dataclass(frozen=True)
class WholeRows:
    """B as it lies in memory: one TMA box holds the rows of a tile."""

    map_names: ClassVar[tuple[str, ...]] = ("weights", "weights_part")
    decode_warps: ClassVar[int] = 0
    arrivals: ClassVar[int] = 1  # at a stage's barrier, of those that bring B
    boxes: ClassVar[int] = 1  # that a K block of a tile takes
    loader: ClassVar[str] = "load.load_weights"  # the function that most lines of the loader's K loop are from
    mn_major: ClassVar[tuple[bool, bool]] = (False, False)  # whether rows of shared memory are K, of A and of B
    tables: ClassVar[tuple[Field, ...]] = ()

    def num_bytes(self, columns: int) -> int:
        return columns * ROW_BYTES

    def operands(self, columns: int, num_stages: int) -> tuple[Field, ...]:
        return ()

    def barriers(self, ring: Sequence[MBarrier], num_stages: int) -> tuple[MBarrier, ...]:
        return tuple(ring)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        problem, columns = config.problem, config.block_n // self.boxes
        width = problem.formats.weights.row_bytes(problem.k)
        # A burst requests adjacent blocks anyway; with L2 promotion they would be read twice.
        l2 = BURST_PROMOTION if config.burst > 1 else promotion(problem, width)
        boxes = zip(self.map_names, (columns, part(columns)), strict=True)
        return {name: operand_rows(args.b, width, problem.all_rows, box, l2=l2) for name, box in boxes}

    def scale_row(self, problem: GemmProblem, first: Any, index: int) -> Any:
        """Row of B's scales for block `index` of 128 columns of a warpgroup, which begin at row block `first` of B."""
        return minimum(first + index, problem.scale_rows - 1)

    def scale_rows(self, tile: TileShape) -> int:
        return max(tile.scale_rows(half) for half in {False, tile.half_tiles})

    def thread_scales(self, columns: int) -> int:
        """Registers of a thread for the scales of so many columns, loaded for every K block."""
        return 0

    def share(self, share: Any) -> Any:
        return share

    load = late("blocks.gemm.load.load_weights")


@dataclass(frozen=True)
class TransposedWeights(WholeRows):
    """MN-major B: rows are K in memory and in shared memory, one box for every 64 columns."""

    boxes: int  # type: ignore[misc]
    map_names: ClassVar[tuple[str, ...]] = ("weights",)
    mn_major: ClassVar[tuple[bool, bool]] = (False, True)
    loader: ClassVar[str] = "load.load"

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        problem = config.problem
        return {"weights": operand_rows(args.b, 2 * problem.n, problem.num_groups * problem.k, K_ROWS)}

    load = late("blocks.gemm.load.load_weights", "blocks.gemm.load.transposed_tile")


@dataclass(frozen=True)
class SortedColumns(WholeRows):
    """One warp loads rows of K with TMA, one box for every 64 columns.  If a group's last stage has fewer rows, the warp copies them
    instead, so that it does not read rows of the next group."""

    map_names: ClassVar[tuple[str, ...]] = ("weights",)
    arrivals: ClassVar[int] = 32  # every lane's
    mn_major: ClassVar[tuple[bool, bool]] = (True, True)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return {"weights": operand_rows(args.b, 2 * config.problem.tile_columns, args.m, K_ROWS)}

    load = late("blocks.gemm.varlen_k.load_columns")


@dataclass(frozen=True)
class ScaledColumns(WholeRows):
    """The transposed right operand of a varlen-K GEMM in FP8: each column has a scale for 128 rows."""

    map_names: ClassVar[tuple[str, ...]] = ("weights", "weights_part", "sfb")

    def operands(self, columns: int, num_stages: int) -> tuple[Field, ...]:
        return (Field("sfb", (num_stages, columns), F32, 128),)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return transposed_side(self.map_names, args.b, args.b_sf, config.problem.tile_columns, args.m, config.block_n)

    def scale_rows(self, tile: TileShape) -> int:
        return 0

    def thread_scales(self, columns: int) -> int:
        return columns // 4

    def share(self, share: Any) -> Any:
        return find("blocks.sm90.share.ColumnScaledShare")(**vars(share))

    load = late("blocks.gemm.load.load_weights", "blocks.gemm.load.summed_tile")


@dataclass(frozen=True)
class GateUpRows(WholeRows):
    """Rows of gate and of up, half of B apart, one box each.  up_first: up lies in the first half."""

    up_first: bool

    boxes: ClassVar[int] = 2

    def scale_row(self, problem: GemmProblem, first: Any, index: int) -> Any:
        second = index == (not self.up_first)
        return (first >> 1) + second * (problem.scale_rows // 2)

    load = late("blocks.gemm.load.load_weights", "blocks.gemm.load.gate_and_up")


def packed_maps(address: Any, part: PackedPart, lines: int) -> list[MapFields]:
    """Tensor maps of the codes and of the records of packed tiles, `lines` in all; a box holds those of one part."""
    return [operand_rows(address, LINE_BYTES, lines, box, swizzle=0) for box in (part.code_lines, part.record_lines)]


@dataclass(frozen=True)
class PackedWeights(WholeRows):
    """Codes and records of packed FP4 tiles; math warps decode them in registers by a table of values (device/e2m1.py)."""

    map_names: ClassVar[tuple[str, ...]] = ("codes", "records")
    boxes: ClassVar[int] = 2
    tables: ClassVar[tuple[Field, ...]] = (Field("decoded", (SHIFTS, ENTRY_BYTES), U8, 16 * ENTRY_BYTES),)

    def num_bytes(self, columns: int) -> int:
        return PackedPart(columns).num_bytes

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        problem = config.problem
        lines = problem.num_groups * lines_of(problem.n, problem.k_blocks)
        return dict(zip(self.map_names, packed_maps(args.b, PackedPart(config.block_n), lines), strict=True))

    def scale_rows(self, tile: TileShape) -> int:
        return 0

    load = late("blocks.gemm.load.load_weights", "blocks.gemm.load.packed_tile")


@dataclass(frozen=True)
class DecodedWeights(PackedWeights):
    """Packed FP4 tiles that separate warps decode: a ring of packed tiles, as deep, feeds the ring of operands.  tall: a warpgroup has
    two chunks of 64 rows of A."""

    tall: bool

    decode_warps: ClassVar[int] = WARPS_PER_GROUP
    arrivals: ClassVar[int] = decode_warps

    def num_bytes(self, columns: int) -> int:
        """Bytes of E4M3 [n][BLOCK_K], which decode warps write."""
        return columns * BLOCK_K

    def operands(self, columns: int, num_stages: int) -> tuple[Field, ...]:
        """codes: packed tiles before decoding.  row_exponents: UE8M0 of four rows a word, as in the records.  sfb: the tile's scale."""
        packed = PackedPart(columns)
        return (
            Field("codes", (num_stages, packed.num_bytes), U8, OPERAND_ALIGNMENT),
            Field("row_exponents", (num_stages, packed.rows // 4), U32, 16),
            Field("sfb", (num_stages,), F32),
        )

    def barriers(self, ring: Sequence[MBarrier], num_stages: int) -> tuple[MBarrier, ...]:
        """The decode warps arrive and wait in place of the weight loader, which gets a ring of barriers of its own."""
        full, empty, *others = ring
        return (
            replace(full, who="token loader and every decode warp", transaction="rows of A and their scales"),
            replace(empty, waits="token loader and decode warps"),
            MBarrier("codes_full", num_stages, 1, "weight loader", "a part of a packed tile", "decode warps"),
            MBarrier("codes_empty", num_stages, self.decode_warps, "every decode warp", "", "weight loader"),
            *others,
        )

    def share(self, share: Any) -> Any:
        return find(f"blocks.sm90.packed_share.{'DecodedRows' if self.tall else 'DecodedShare'}")(**vars(share))

    decode = late("blocks.gemm.load.decode_weights")


def side_maps(name: str, gathers: bool, columns: int, args: Any) -> dict[str, MapFields]:
    """Tensor maps of an MN-major BF16 operand, 64 columns a box: boxes of one row for gather4, and of a stage's rows if it is sorted."""
    if gathers:
        return {name: operand_rows(args.a, 2 * columns, args.a_rows, 1)}
    whole, row = (operand_rows(args.b, 2 * columns, args.m, rows) for rows in (K_ROWS, 1))
    return {name: whole, "sorted_rows": row}


def transposed_pair_side(
    names: tuple[str, str], codes: Any, words: Any, shape: tuple[int, Any], boxes: tuple[int, int], k_block: Any
) -> dict[str, MapFields]:
    """Tensor maps, by `names`, of a transposed operand of `shape` (columns, rows): its codes, and its words of scales, one line of all
    columns for 128 rows.  `boxes`: columns of a stage's codes and of its scales."""
    (columns, rows), (box, scaled) = shape, boxes
    of_scales = scale_words(words, align(columns, SF_ATOM_ROWS), rows // SF_ATOM_ROWS, align(scaled, SF_ATOM_ROWS), k_block)
    return dict(zip(names, (weight_rows(codes, rows, columns, k_block, box), of_scales), strict=True))


RUN = 8  # rows of gate, then of up


def runs_of_gate_and_up(flat: MapFields, n: int, groups: int, interleaved: bool, runs: int) -> MapFields:
    """The map `flat` with five dimensions: K, eight rows, gate or up, eights of channels, groups.  A box holds `runs` runs of 8 rows of
    gate and the 8 rows of up of the same channels; each group has `n` rows."""
    (row,) = flat.strides
    strides = (2 * row, row, 2 * RUN * row, n * row) if interleaved else (row, n // 2 * row, RUN * row, n * row)
    return replace(flat, dims=(flat.dims[0], RUN, 2, n // (2 * RUN), groups), strides=strides, box=(flat.box[0], RUN, 2, runs, 1))


@dataclass(frozen=True)
class PairWeights:
    """Rows of B that follow one another."""

    mn_major: ClassVar[bool] = False  # whether rows of shared memory are K

    def rows(self, config: Any, address: Any) -> MapFields:
        problem = config.problem
        return weight_rows(address, problem.k, problem.all_rows, config.k_block, config.stage.weight_rows)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        problem, weights = config.problem, self.rows(config, args.b)
        if not problem.formats.scaled:
            return {"weights": weights, "sfb": weights}
        width, height = align(problem.n, SF_ATOM_ROWS), problem.num_groups * problem.k_words
        return {"weights": weights, "sfb": scale_words(args.b_sf, width, height, config.stage.weight_rows, config.k_block)}

    operand = late("blocks.gemm.sm100.load.weight_operand")

    load = late("blocks.gemm.sm100.load.load_weights")


@dataclass(frozen=True)
class PairTransposedWeights(PairWeights):
    """MN-major B: rows are K in memory and in shared memory, one box for every 64 columns."""

    mn_major: ClassVar[bool] = True

    def rows(self, config: Any, address: Any) -> MapFields:
        problem = config.problem
        return operand_rows(address, 2 * problem.n, problem.num_groups * problem.k, K_ROWS)

    operand = late("blocks.gemm.sm100.load.transposed_operand")


@dataclass(frozen=True)
class PairSummedColumns(PairWeights):
    """The transposed right operand of a varlen-K GEMM."""

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        boxes = (config.stage.weight_rows,) * 2
        return transposed_pair_side(("weights", "sfb"), args.b, args.b_sf, (config.problem.k, args.m), boxes, config.k_block)

    operand = late("blocks.gemm.sm100.load.summed_weights")


@dataclass(frozen=True)
class PairSortedColumns(PairWeights):
    """The MN-major right operand of a varlen-K GEMM.  gathers: whether its rows are gathered by a list."""

    gathers: bool

    mn_major: ClassVar[bool] = True

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return side_maps("weights", self.gathers, config.problem.k, args)

    load = late("blocks.gemm.sm100.varlen_k.load_right")


@dataclass(frozen=True)
class PairGateUpWeights(PairWeights):
    """8 rows of gate, the 8 of up that belong to them, and so on, wherever they lie in B.  order: how B has gate and up.

    Gate and up of a channel then lie in one thread of the epilogue.  One box of five dimensions brings a CTA's channels, 64 for each
    consumer: K, eight rows, gate or up, eights of channels, experts; that gate and up lie apart, or alternate, is a matter of strides.
    """

    order: str

    def runs(self, config: Any) -> int:
        """Runs of `RUN` rows of gate in a CTA's part of a tile; as many of up follow."""
        count: int = config.stage.weight_rows // (2 * RUN)
        return count

    def rows(self, config: Any, address: Any) -> MapFields:
        problem = config.problem
        flat = weight_rows(address, problem.k, problem.n, config.k_block)
        return runs_of_gate_and_up(flat, problem.n, problem.num_groups, self.order == INTERLEAVED, self.runs(config))

    operand = late("blocks.gemm.sm100.load.gate_up_operand")
