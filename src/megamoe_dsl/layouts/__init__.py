"""Where every byte is: regions, pools, scale-factor orders, swizzles, SMEM and TMEM plans.

Pure Python.  Functions that a kernel also calls work on Python ints and on traced DSL integers alike.
"""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
