"""Adapters: DeepGEMM's API, experts of transformers, and plug-ins for serving engines."""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
