"""A resource that many share, first come, first served: HBM, L2, NVLink."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Server:
    """Serves at `rate` bytes per microsecond; `free` is when all that was asked for so far is served, `served` how many bytes that was."""

    rate: float
    free: float = 0.0
    served: float = 0.0

    def serve(self, times: Floats, amounts: Floats) -> Floats:
        """When each of some requests, in the order of their times, has been served; those without an amount wait for nobody."""
        service = np.cumsum(amounts) / self.rate
        begun = np.maximum(np.maximum.accumulate(times - service + amounts / self.rate), self.free)
        done = begun + service
        self.free = float(done[-1])
        self.served += float(service[-1]) * self.rate
        return done

    def take(self, time: float, amount: float) -> float:
        """The same of one request."""
        self.free = max(self.free, time) + amount / self.rate
        self.served += amount
        return self.free
