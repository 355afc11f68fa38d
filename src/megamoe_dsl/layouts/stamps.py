"""Stamps of a traced kernel: each says when a warp finished an activity, and which (device/stamps.py)."""

from __future__ import annotations

from .region import U32, U64, Field, Region

CAPACITY = 2048  # stamps of a warp

STAMP = Region.stack("stamp", Field("time", (1,), U64), Field("activity", (1,), U32), Field("detail", (1,), U32))
"""`time` in nanoseconds of %globaltimer; each kernel defines what `activity` and `detail` mean."""


def trace_buffer(num_sms: int, warps: int) -> Region:
    """Stamps of every warp of every CTA, in order, up to the first whose time is zero."""
    return Region.stack("trace", Field("stamps", (num_sms, warps, CAPACITY, STAMP.size // 8), U64, 16))
