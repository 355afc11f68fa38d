"""Which block a CTA pair works on next: one scheduler object for the host and for kernels."""

from .scheduler import LINEAR1, LINEAR2, Block, HostTable, Scheduler

__all__ = ["LINEAR1", "LINEAR2", "Block", "HostTable", "Scheduler"]
