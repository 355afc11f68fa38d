"""The shape of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from numbers import Integral

from .errors import SimError

Dim3 = tuple[int, int, int]
LIMITS: dict[str, Dim3] = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64), "cluster": (16, 16, 16)}
"""The largest x, y and z that GPUs take.  Source: CUDA programming guide, "Technical specifications per compute capability"; clusters of
more than 8 CTAs are not portable, 16 are the most."""
MOST = {"grid": 1 << 20, "block": 1024, "cluster": 16}
"""The largest product; a grid of more CTAs is too large for the simulator, not for a GPU."""


@dataclass(frozen=True)
class Geometry:
    """Grid and cluster count CTAs, `block` threads; `dynamic_smem` is in bytes per CTA."""

    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    dynamic_smem: int = 0

    def check(self) -> None:
        """Raises SimError for a launch that a GPU refuses, and for a grid of more CTAs than the simulator takes."""
        for name, limits in LIMITS.items():
            sizes = getattr(self, name)
            if (
                not isinstance(sizes, tuple | list)
                or len(sizes) != 3
                or not all(isinstance(n, Integral) and 1 <= int(n) <= most for n, most in zip(sizes, limits, strict=True))
            ):
                raise SimError(f"{name} = {sizes!r}: must be three integers from 1 to {', '.join(map(str, limits))}")
            if prod(sizes) > MOST[name]:
                raise SimError(f"{name} = {sizes!r}: must be at most {MOST[name]} in all")
        if not isinstance(self.dynamic_smem, Integral) or self.dynamic_smem < 0:
            raise SimError(f"dynamic_smem = {self.dynamic_smem!r}: must be bytes, 0 or more")

    @property
    def ctas(self) -> int:
        return prod(self.grid)

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
