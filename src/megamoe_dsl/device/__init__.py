"""What roles are made of: one function per PTX instruction, ring state, waits and barriers, casts in registers."""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
