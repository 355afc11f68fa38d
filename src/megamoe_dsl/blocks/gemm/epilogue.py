"""Epilogues of GEMMs on SM90 and SM100: how a tile's FP32 sums reach D."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...hardware.tensor_map import MapFields, TensorMapDtype
from ...lazy import find, late
from ...recipe import Format
from ..sm100.epilogue_tile import FC1_CHANNELS, HALF_BYTES, HALF_CHANNELS
from ..sm100.pair_stage import byte_rows
from .problem import BF16, DOT_COLUMNS, F32
from .tile import ADDED_COLUMNS, ADDED_ROWS, GROUP_ROWS, L2_PROMOTION, SWAPPED_COLUMNS, TileShape

MOST_WIDE_GROUPS = 340  # whose tables leave room for wide boxes of a gradient beside four stages
GATE_UP_ROWS = 256  # rows of B of a tile of gate and up: 128 of each, the channels of a scale


def check_rows_of_warpgroups(config: Any, what: str) -> None:
    """Raises `ConfigError` unless each warpgroup has 64 rows of its own."""
    whole = not config.swap_ab and not config.half_tiles and config.block_m == GROUP_ROWS * config.warpgroups
    config.require("block_m", whole, f"{GROUP_ROWS} for each warpgroup, without halves and swap_ab, for {what}")


class Epilogue:
    """Takes the FP32 sums of a tile from registers or tensor memory to D."""

    def check(self, config: Any) -> None:
        """Accepts every configuration, because sums of any tile can be stored."""


@dataclass(frozen=True)
class Store(Epilogue):
    """Stores sums to D.  buffers: SMEM staging buffers of a warp; 0 if FP32 goes from registers to memory."""

    buffers: int

    idles: ClassVar[bool] = False
    """Whether a warpgroup without valid rows in a tile skips its MMAs."""

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """The tensor map of D; unused if FP32 or activated values leave from registers."""
        problem, tile = config.problem, config.tile
        kind = {F32: TensorMapDtype.F32, BF16: TensorMapDtype.BF16}.get(problem.output, TensorMapDtype.U8)
        dims, pitch = (problem.d_columns, args.d_rows if problem.of_experts else args.m), (problem.d_columns * problem.output_bytes,)
        box, swizzle = (tile.store_columns, tile.store_rows), 0 if problem.output == F32 else tile.store_swizzle
        return {"d": MapFields(args.d, kind, dims, pitch, box, swizzle, L2_PROMOTION)}

    finish = late("blocks.gemm.store.finish_rows")

    def box_bytes(self, tile: TileShape) -> int:
        return 2 * tile.store_rows * tile.store_columns

    def begin(self, ctx: Any, tile: Any, share: Any) -> None:
        """Runs before a tile is multiplied, in the warps that finish it."""


@dataclass(frozen=True)
class StoreTransposed(Store):
    """Stores sums to D, whose columns are the wgmma's rows."""

    finish = late("blocks.gemm.varlen_k.finish_transposed")


@dataclass(frozen=True)
class AddSums(Store):
    """Adds FP32 sums to D with TMA.  transposes: D's columns are the wgmma's rows."""

    transposes: bool

    @property
    def box(self) -> tuple[int, int]:
        return (SWAPPED_COLUMNS, ADDED_COLUMNS) if self.transposes else (ADDED_COLUMNS, ADDED_ROWS)

    @property
    def swizzle(self) -> int:
        return 4 * self.box[0]

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        columns = config.problem.d_columns
        return {"d": MapFields(args.d, TensorMapDtype.F32, (columns, args.d_rows), (4 * columns,), self.box, self.swizzle)}

    finish = late("blocks.gemm.varlen_k.add_sums")


@dataclass(frozen=True)
class ActivateGateUp(Store):
    """Activates gate and up, and quantizes unless D is BF16; TMA does not read the staging buffer.  idles: with several warpgroups, whose
    rows an expert's last tile may leave empty."""

    buffers: int = 1
    idles: bool = False  # type: ignore[misc]

    def check(self, config: Any) -> None:
        """Requires gate and up of a row in one thread: a warpgroup has all columns of a tile of 128 channels.  Raises `ConfigError`."""
        config.require("block_n", config.block_n == GATE_UP_ROWS, f"{GATE_UP_ROWS} for gate and up")
        check_rows_of_warpgroups(config, "gate and up")

    def finish(self, ctx: Any, *tile: Any) -> None:  # type: ignore[override]
        find("blocks.gemm.gate_up.finish_gate_up" if ctx.config.tile.scaled else "blocks.gemm.gate_up.finish_gate_up_bf16")(ctx, *tile)


@dataclass(frozen=True)
class GateUpGradient(Store):
    """Turns sums, gradients of the activated product, into gradients of gate and up.  channels: of a warp's box of 8 rows."""

    channels: int

    @staticmethod
    def of(tile: TileShape, groups: int) -> GateUpGradient:
        """Scales, or tables of many groups, leave no room beside four stages for two boxes of 64 channels."""
        return GateUpGradient(3, 32) if tile.scaled or groups > MOST_WIDE_GROUPS else GateUpGradient(2, 64)

    def check(self, config: Any) -> None:
        """Requires all columns of a row of a tile in one quad.  Raises `ConfigError`."""
        check_rows_of_warpgroups(config, "a gradient")
        config.require("block_n", config.block_n % DOT_COLUMNS == 0, f"a multiple of {DOT_COLUMNS} for a gradient")

    def box_bytes(self, tile: TileShape) -> int:
        return tile.store_rows // 2 * 4 * self.channels

    begin = late("blocks.gemm.gate_up_gradient.begin_gradient")
    finish = late("blocks.gemm.gate_up_gradient.finish_gradient")


@dataclass(frozen=True)
class StorePasses(Epilogue):
    """Stores sums to D, row for row of A.  staged: BF16 through SMEM; FP32 goes from registers to memory."""

    staged: bool

    shares_maxima: ClassVar[bool] = False  # whether warps exchange the maxima of rows
    map_names: ClassVar[tuple[str, ...]] = ()

    @property
    def function(self) -> str:
        """The function, or file, that reads sums, as a SASS listing names it."""
        return "results." if self.staged else "epilogue."

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return {}

    finish = late("blocks.gemm.sm100.epilogue.store_tile_of")


@dataclass(frozen=True)
class ScatterPasses(Epilogue):
    """Stores BF16 rows of experts from SMEM with scatter4."""

    staged: ClassVar[bool] = True
    shares_maxima: ClassVar[bool] = False
    function: ClassVar[str] = "results."
    map_names: ClassVar[tuple[str, ...]] = ("d",)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """D: a row's half of the 128 channels that a CTA has."""
        dims, pitch = (config.problem.d_columns, args.d_rows), (config.problem.d_columns * config.problem.output_bytes,)
        return {"d": MapFields(args.d, TensorMapDtype.BF16, dims, pitch, (HALF_CHANNELS, 1), HALF_BYTES)}

    finish = late("blocks.gemm.sm100.epilogue.finish_results")


@dataclass(frozen=True)
class ScatterGateUp(ScatterPasses):
    """Activates gate and up, and quantizes to `hidden` unless that is BF16."""

    hidden: Format

    shares_maxima: ClassVar[bool] = True
    function: ClassVar[str] = "outputs."

    def check(self, config: Any) -> None:
        """Raises `ConfigError` if the last tile were partial: some of its rows of gate would lack their rows of up."""
        whole = config.problem.n % config.block_n == 0
        tile = f"gate and up with consumers = {config.consumers} and pairs = {config.pairs}"
        config.require("problem.n", whole, f"a multiple of {config.block_n} for {tile}")

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """D: bytes of a row's 64 channels that a CTA has of gate and up."""
        row_bytes = self.hidden.row_bytes
        return {"d": byte_rows(args.d, row_bytes(config.problem.d_columns), args.d_rows, 1, row_bytes(FC1_CHANNELS))}

    finish = late("blocks.gemm.sm100.gate_up.finish_gate_up")


@dataclass(frozen=True)
class GradientPasses(ScatterPasses):
    """Turns sums, gradients of the activated product, into gradients of gate and up; everything leaves from registers."""

    function: ClassVar[str] = "gradient."
    map_names: ClassVar[tuple[str, ...]] = ()

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return {}

    finish = late("blocks.gemm.sm100.gradient.finish_gradient")
