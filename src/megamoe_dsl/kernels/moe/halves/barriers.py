"""The mbarriers that an expert-parallel kernel adds to those of its GEMM (blocks/gemm/barriers.py)."""

from __future__ import annotations

from ....layouts.mbarrier import MBarrier


def pull_barrier(chunks: int) -> MBarrier:
    """A barrier for each chunk that the communication warps have on their way together."""
    return MBarrier("pull", chunks, 1, "the communication warp", "one chunk of a token row", "the communication warp")


def combine_barrier(sets: int) -> MBarrier:
    """A barrier for each set of slots that the communication warps have together."""
    return MBarrier("combine", sets, 1, "the communication warp", "one piece of a token's top-k results", "the communication warp")
