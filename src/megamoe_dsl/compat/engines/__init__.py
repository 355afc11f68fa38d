"""Serving engines whose expert-parallel layer calls DeepGEMM's MegaMoE, made to call this project's (docs/howto/engines.md)."""

from ...lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
