"""The entry point of the kernel that a configuration is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .mega_moe import target as mega_moe
from .mega_moe.target import Config
from .pre_dispatch.config import PreDispatchConfig

AnyConfig = Config | PreDispatchConfig


def entry(config: AnyConfig) -> tuple[Callable[..., Any], Any]:
    """The launching function and placeholder arguments of the right types.  Imports the DSL."""
    if isinstance(config, PreDispatchConfig):
        from .pre_dispatch import kernel as pre_dispatch

        return pre_dispatch.entry(config)
    return mega_moe.entry(config)
