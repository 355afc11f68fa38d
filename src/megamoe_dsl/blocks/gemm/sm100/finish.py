"""Epilogues of SM100: what becomes of the sums of a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ....config_error import require
from ....hardware.tensor_map import MapFields, TensorMapDtype
from ....recipe import Format
from ...sm100.epilogue_tile import FC1_CHANNELS
from ...sm100.operand_maps import byte_rows
from ...sm100.result_tile import HALF_BYTES, HALF_CHANNELS


@dataclass(frozen=True)
class StorePasses:
    """Sums go to D, whose rows follow those of A.  staged: BF16, by way of SMEM; FP32 goes from registers to memory."""

    staged: bool

    shares_maxima: ClassVar[bool] = False
    """Whether warps exchange the maxima of rows."""

    @property
    def function(self) -> str:
        """The function that reads sums, or its file, as a listing names it."""
        return "results." if self.staged else "epilogue."

    def check(self, config: Any) -> None:
        """Accepts every configuration, because sums of any tile can be stored."""

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """No tensor map: threads write rows."""
        return {}

    def finish(self, ctx: Any, tile: Any, column: Any, group: Any, warp: Any, lane: Any) -> None:
        """A warp's part of a tile, whose sums begin at TMEM column `column`."""
        from .epilogue import store_tile_of

        store_tile_of(ctx, tile, column, group, warp, lane)

    def end(self) -> None:
        """What a warp waits for behind its last tile: nothing reads shared memory any more."""


@dataclass(frozen=True)
class ScatterPasses:
    """BF16, wherever rows of experts lie: scatter4 takes them from SMEM."""

    staged: ClassVar[bool] = True
    shares_maxima: ClassVar[bool] = False
    function: ClassVar[str] = "results."

    def check(self, config: Any) -> None:
        """Accepts every configuration, because sums of any tile can be stored."""

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """D: a row's half of the 128 channels that a CTA has."""
        columns, value_bytes = config.problem.d_columns, config.problem.output_bytes
        dims = (columns, args.d_rows)
        return {"d": MapFields(args.d, TensorMapDtype.BF16, dims, (columns * value_bytes,), (HALF_CHANNELS, 1), HALF_BYTES)}

    def part(self) -> Callable[..., Any]:
        """What a warpgroup does with its part of a tile."""
        from ..gather.sm100.epilogue import finish_results

        return finish_results

    def finish(self, ctx: Any, tile: Any, column: Any, group: Any, warp: Any, lane: Any) -> None:
        """A warp's part of a tile, whose sums begin at TMEM column `column`."""
        from ..gather.sm100.epilogue import finish_tile

        finish_tile(ctx, tile, column, group, warp, lane, self.part())

    def end(self) -> None:
        """A warp waits until its last bulk stores have read shared memory."""
        from ....device.tma import wait_group_read

        wait_group_read(0)


@dataclass(frozen=True)
class ScatterGateUp(ScatterPasses):
    """Gate and up are activated, and quantized to `hidden` unless that is BF16."""

    hidden: Format

    shares_maxima: ClassVar[bool] = True

    @property
    def function(self) -> str:  # type: ignore[override]
        if self.hidden.factor:
            return "gate_up_nvfp4."
        return "epilogue.finish_gate_up" if self.hidden.scale else "gate_up_bf16."

    def check(self, config: Any) -> None:
        """Raises `ConfigError` where a tile is partial: its rows of gate would lack some of up."""
        of_tile = f"consumers = {config.consumers} and pairs = {config.pairs}"
        whole = config.problem.n % config.block_n == 0
        require(whole, "problem.n", config.problem.n, f"a multiple of {config.block_n} for gate and up with {of_tile}")

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """D: a row's 64 channels that a CTA has of gate and up."""
        if not self.hidden.scale:
            return super().maps(config, args)
        row_bytes = self.hidden.row_bytes
        return {"d": byte_rows(args.d, row_bytes(config.problem.d_columns), args.d_rows, 1, row_bytes(FC1_CHANNELS))}

    def part(self) -> Callable[..., Any]:
        from ..gather.sm100 import epilogue, gate_up_bf16, gate_up_nvfp4

        if self.hidden.factor:
            return gate_up_nvfp4.finish_gate_up_nvfp4
        return epilogue.finish_gate_up if self.hidden.scale else gate_up_bf16.finish_gate_up_bf16
