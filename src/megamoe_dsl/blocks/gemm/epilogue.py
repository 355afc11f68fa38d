"""Epilogues of SM90: what becomes of the sums of a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ...config_error import require
from ...hardware.tensor_map import MapFields
from .maps import result_map
from .tile import GROUP_ROWS

GATE_UP_ROWS = 256
"""Rows of B of a tile of gate and up: 128 of each, the channels of a scale."""


@dataclass(frozen=True)
class Store:
    """Sums go to D.  buffers: staging buffers that a warp has in SMEM; 0 where FP32 goes from registers to memory."""

    buffers: int

    idles: ClassVar[bool] = False
    """Whether a warpgroup whose rows of a tile are not there leaves out what they would be multiplied with."""

    def check(self, config: Any) -> None:
        """Accepts every configuration, because sums of any tile can be stored."""

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """Fields of the tensor maps, by name."""
        return result_map(config, args)

    def finish(self, config: Any) -> Callable[..., Any]:
        """What a warp does with the sums of a tile whose rows of A are the wgmma's rows."""
        from .epilogue_rows import finish_tile

        return finish_tile


@dataclass(frozen=True)
class ActivateGateUp:
    """Gate and up are activated, and quantized unless D is BF16.  idles: where warpgroups have rows of their own, which those of a last
    tile of an expert need not fill."""

    idles: bool

    buffers: ClassVar[int] = 1
    """TMA does not read it."""

    def check(self, config: Any) -> None:
        """Gate and up of a row lie in one thread: a warpgroup has all columns of a tile of 128 channels.  Raises `ConfigError`."""
        require(config.block_n == GATE_UP_ROWS, "block_n", config.block_n, f"{GATE_UP_ROWS} for gate and up")
        whole = not config.swap_ab and not config.half_tiles and config.block_m == GROUP_ROWS * config.warpgroups
        require(whole, "block_m", config.block_m, f"{GROUP_ROWS} for each warpgroup, without halves and swap_ab, for gate and up")

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """Fields of the tensor maps, by name."""
        return result_map(config, args)

    def finish(self, config: Any) -> Callable[..., Any]:
        """What a warp does with the sums of a tile."""
        from .gather.epilogue_gate_up import finish_gate_up
        from .gather.epilogue_gate_up_bf16 import finish_gate_up_bf16

        return finish_gate_up if config.tile.scaled else finish_gate_up_bf16


Epilogue = Store | ActivateGateUp
