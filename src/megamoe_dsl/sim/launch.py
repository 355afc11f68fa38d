"""What is to run: a kernel launch."""

from __future__ import annotations

from dataclasses import dataclass

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `args` follow the PTX parameter order: int for a scalar, bytes for an aggregate.

    Launches of one rank form a stream: each begins when the one before it has ended. Ranks do not wait for each other.
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    dynamic_smem: int = 0
    args: tuple[int | bytes, ...] = ()
    rank: int = 0
