"""The SM100 context: shared fields and addresses, and where its tensor maps are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import cutlass

from ..context import Context
from .config import Sm100Config
from .maps import PHASE_STRIDE


@dataclass(frozen=True)
class Sm100Context(Context):
    """Context of the SM100 roles; its tensor maps are `Sm100Map`s (maps.py)."""

    phase_stride: ClassVar[int] = PHASE_STRIDE

    config: cutlass.Constexpr[Sm100Config]
