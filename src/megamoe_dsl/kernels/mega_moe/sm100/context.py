"""The SM100 context: shared fields and addresses, and its tensor maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int64

from ....hardware.tensor_map import DESCRIPTOR_BYTES
from ..context import Context
from .config import Sm100Config
from .maps import PHASE_STRIDE


@dataclass(frozen=True)
class Sm100Context(Context):
    """Context of the SM100 roles."""

    config: cutlass.Constexpr[Sm100Config]

    def map(self, which: Any, phase: Any = 0) -> Any:
        """Address of a tensor map; `phase` is 0 for Linear1, 1 for Linear2."""
        if isinstance(phase, int):
            return self.args.maps + (which * DESCRIPTOR_BYTES + phase * PHASE_STRIDE)
        return self.args.maps + Int64(phase * PHASE_STRIDE) + which * DESCRIPTOR_BYTES
