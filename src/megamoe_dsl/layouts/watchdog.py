"""The record that a kernel leaves when a wait on global memory exceeds its limit; each kernel defines what its numbers mean."""

from __future__ import annotations

from .region import U32, Field, Region

RECORD = Region.stack(
    "watchdog",
    Field("wait", (1,), U32),
    Field("rank", (1,), U32),
    Field("sm", (1,), U32),
    Field("detail", (1,), U32),
    Field("expected", (2,), U32),
    Field("observed", (2,), U32),
)
"""`wait` says which wait it was; it is written last, and is not zero."""
