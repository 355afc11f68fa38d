"""What chips define: tensor maps, swizzles, register fragments, orders of scale factors, tensor memory.  Pure Python."""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
