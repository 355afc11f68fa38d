"""Number formats and weight transforms of the MegaMoE, on torch tensors.  Nothing here imports cutlass or needs a GPU."""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
