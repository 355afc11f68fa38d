"""What a traced CTA keeps in shared memory."""

from __future__ import annotations

from ...layouts.region import U32, Field


def trace_counts(warps: int) -> tuple[Field, ...]:
    """Stamps so far of each traced warp (device/stamps.py); nothing of none."""
    return (Field("trace_count", (warps,), U32),) if warps else ()
