"""Mixture-of-experts kernels in CuTe DSL.  Importing this package imports neither torch nor cutlass; public names load on first use.

The names of `__all__` are the public API, modules among them (`megamoe_dsl.layouts`, `megamoe_dsl.sim`) with the names of their `__all__`.
Everything else may change without notice.

What takes long says so through `logging.getLogger("megamoe_dsl")`: at INFO, which kernels are compiled in how many processes, and that they
are done.
"""

from .lazy import lazy_names

__version__ = "0.1.0"
__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
__all__ += ["__version__"]
