"""Plug-ins for serving engines: their experts on this project's kernels (docs/howto/sglang.md, docs/howto/vllm.md)."""

from ...lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
