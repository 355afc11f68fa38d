"""Which block a CTA pair works on next: one scheduler object for the host and for kernels."""

from .scheduler import FC1, FC2, Block, HostTable, Scheduler

__all__ = ["FC1", "FC2", "Block", "HostTable", "Scheduler"]
