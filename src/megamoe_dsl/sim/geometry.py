"""The shape of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Geometry:
    """Grid and cluster count CTAs, `block` threads; `dynamic_smem` is in bytes per CTA."""

    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    dynamic_smem: int = 0

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return prod(self.grid)

    @property
    def ctas_of_cluster(self) -> int:
        """CTAs of a cluster."""
        return prod(self.cluster)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return prod(self.block)

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return -(-self.threads // 32)
