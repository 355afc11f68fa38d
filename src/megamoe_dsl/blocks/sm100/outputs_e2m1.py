"""Outputs of Linear1 in E2M1: the lanes of a warp exchange nibbles until each has all 16 channels of one token of the pass, 8 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...device.cast import E2M1_MAX, pack_e2m1
from ...device.e2m1 import gather_rows
from ...device.memory import store_shared_v2
from .epilogue_tile import packed_store_address, packed_token


@dataclass(frozen=True)
class E2m1Outputs:
    """The counterpart of `E4m3Outputs`; a pass has four groups."""

    largest: ClassVar[float] = E2M1_MAX

    def pack(self, values: Sequence[Any]) -> Any:
        """Channels c and c + 8 of the first token, then of the second: the nibbles of two bytes."""
        return values[0], values[2], values[1], values[3]

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        """All groups of the pass into the tile at `buffer`."""
        first, second = (pack_e2m1(*groups[g], *groups[g + 1]) for g in (0, 2))
        store_shared_v2(packed_store_address(buffer, packed_token(lane), warp), *gather_rows(first, second, lane))
