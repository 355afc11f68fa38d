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
        return prod(self.grid)

    @property
    def ctas_of_cluster(self) -> int:
        return prod(self.cluster)

    @property
    def threads(self) -> int:
        return prod(self.block)

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)


@dataclass(frozen=True, kw_only=True)
class StreamedGeometry(Geometry):
    """With its place in a stream: those of one rank follow one another, an `early` one begins when the one before it lets it."""

    rank: int = 0
    early: bool = False
