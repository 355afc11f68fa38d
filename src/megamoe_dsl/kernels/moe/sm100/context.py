"""The SM100 context: shared fields and addresses, where its tensor maps are, and where results go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass

from ....device.memory import load_u64
from ..context import Context
from .config import Sm100Config
from .maps import PHASE_STRIDE


@dataclass(frozen=True)
class Sm100Context(Context):
    """Context of the SM100 roles; its tensor maps are `Sm100Map`s (maps.py)."""

    phase_stride: ClassVar[int] = PHASE_STRIDE

    config: cutlass.Constexpr[Sm100Config]

    def result_place(self, row: Any) -> Any:
        """What says where results of pool rows from `row` on go: the addresses of their tokens' combine rows."""
        return self.at("token_src_metadata", row)

    def result_rows(self, place: Any, steps: range) -> list[Any]:
        """Where those so many rows after the first go, BF16, on the tokens' ranks."""
        return [load_u64(place + step * 8) for step in steps]
