"""The 32 lanes of a warp: values, masks and addresses. `lanes.c` has the functions and says what they do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled

Lanes = NDArray[Any]  # One value per lane.

Mask = NDArray[np.bool_] | None  # Which lanes; None for all 32.

LANE = np.arange(32, dtype=np.uint32)  # Every lane's own number.

ALONE = [np.arange(32) == lane for lane in range(32)]  # For every lane, the mask of that lane only.


_C = compiled("lanes", {})
uniform, span, take, put, addresses, stacked, deliver = _C.uniform, _C.span, _C.take, _C.put, _C.addresses, _C.stacked, _C.deliver
