"""Counts that both the mbarriers of a GEMM and its roles are made of."""

from __future__ import annotations

WORK_TILES = 2  # tiles handed out to a CTA that not all of its roles have read
VECTOR = 4  # sums that a thread sends at a time
EXCHANGING_THREADS = 128  # of the warpgroup of a CTA that finishes what both CTAs have summed
