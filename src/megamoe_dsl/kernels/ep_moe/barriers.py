"""The mbarriers that an expert-parallel kernel adds to those of its GEMM (kernels/gemm/barriers.py)."""

from __future__ import annotations

from ...layouts.mbarrier import MBarrier


def task_barriers(*, tasks: int, warps: int) -> tuple[MBarrier, ...]:
    """Of a queue of `tasks` tasks for `warps` communication warps."""
    return (
        MBarrier("task_full", tasks, 1, "scheduler warp", "", "communication warps"),
        MBarrier("task_empty", tasks, 32 * warps, "every lane of the communication warps", "", "scheduler warp"),
    )


def pull_barrier(chunks: int) -> MBarrier:
    """Of so many chunks that all communication warps together have on their way."""
    return MBarrier("pull", chunks, 1, "the communication warp", "one chunk of a token row", "the communication warp")


def combine_barrier(sets: int) -> MBarrier:
    """Of so many sets of slots that all communication warps together have."""
    return MBarrier("combine", sets, 1, "the communication warp", "one piece of a token's top-k results", "the communication warp")
