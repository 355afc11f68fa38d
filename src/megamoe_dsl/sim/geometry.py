"""A launch, and its shape."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import prod
from numbers import Integral
from typing import Any

from .errors import SimError
from .memory import SMEM_MAX

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


@dataclass(frozen=True)
class Launch(Geometry):
    """One kernel launch. `args` follow the PTX parameter order: int for a scalar, bytes for an aggregate.  Launches of one rank form a
    stream: each begins when the one before it has ended, one that is `early` (programmatic dependent launch) when every CTA of the one
    before it has let it or ended. Ranks do not wait for each other. `program` is the kernel (see `load`); None takes the one that the
    simulator was made with."""

    args: tuple[int | bytes, ...] = ()
    program: Any = None
    _: KW_ONLY
    rank: int = 0
    early: bool = False

    def checked(self) -> Any:
        """The program, which must fit this launch. Raises SimError for shared memory, a cluster or a block that is not allowed."""
        if self.program is None:
            raise SimError("a launch names no program, and the simulator was made without PTX")
        kernel, cluster = self.program.kernel, self.cluster
        if (shared := kernel.static_smem + self.dynamic_smem) > SMEM_MAX:
            raise SimError(f"{kernel.name}: {shared} bytes of shared memory; {SMEM_MAX} are available")
        if any(g % c for g, c in zip(self.grid, cluster, strict=True)):
            raise SimError(f"{kernel.name}: grid {self.grid} is not a multiple of the cluster {cluster}")
        if kernel.required_threads and prod(kernel.required_threads) != self.threads:
            raise SimError(f"{kernel.name}: block {self.block} differs from .reqntid {kernel.required_threads}")
        return self.program
