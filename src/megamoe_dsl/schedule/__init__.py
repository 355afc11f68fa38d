"""Which block a CTA works on next: orders of blocks, and one scheduler that walks them on the host and in kernels."""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
