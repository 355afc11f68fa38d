"""The 32 lanes of a warp: values and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
"""One value per lane."""

Mask = NDArray[np.bool_] | None
"""Which lanes; None for all 32."""

LANE = np.arange(32, dtype=np.uint32)
"""Every lane's own number."""

ALONE = [np.arange(32) == lane for lane in range(32)]
"""For every lane, the mask of that lane only."""


def uniform(values: Lanes) -> bool:
    """Whether all lanes have the same bits."""
    return values.tobytes() == values[:1].tobytes() * len(values)
