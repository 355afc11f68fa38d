"""The mbarriers that an expert-parallel kernel adds to those of its GEMM (kernels/gemm/barriers.py)."""

from __future__ import annotations

from ...layouts.mbarrier import MBarrier


def barrier_table(*, tasks: int, warps: int, pull_slots: int) -> tuple[MBarrier, ...]:
    """For `warps` warps that move rows, each with `pull_slots` slots, and a queue of `tasks` tasks."""
    return (
        MBarrier("task_full", tasks, 1, "scheduler warp", "", "communication warps"),
        MBarrier("task_empty", tasks, 32 * warps, "every lane of the communication warps", "", "scheduler warp"),
        MBarrier("pull", warps * pull_slots, 1, "the communication warp", "one chunk of a token row", "the communication warp"),
    )
