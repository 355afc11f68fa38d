"""Outputs of Linear1 in E4M3: a word of a thread has two channels of two tokens, and stmatrix puts them into the tile, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...device.cast import E4M3_MAX, pack_e4m3
from ...device.memory import store_transposed_b8
from .epilogue_tile import fc1_store_address


@dataclass(frozen=True)
class E4m3Outputs:
    """How a warp of the Linear1 epilogue rounds and stores its 16 channels of a pass (epilogue_fc1.py)."""

    largest: ClassVar[float] = E4M3_MAX

    def pack(self, values: Sequence[Any]) -> Any:
        """What is kept of a thread's four scaled values of a group of 8 tokens until all groups are stored."""
        return pack_e4m3(*values)

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        """All groups of the pass into the tile at `buffer`."""
        token = lane & (8 * len(groups) - 1)
        store_transposed_b8(fc1_store_address(buffer, token, warp), groups)
