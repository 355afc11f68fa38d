"""The entry point of the kernel that a configuration is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config_pre_dispatch import PreDispatchConfig
from .mega_moe import target as mega_moe
from .mega_moe.target import Config

AnyConfig = Config | PreDispatchConfig


def entry(config: AnyConfig) -> tuple[Callable[..., Any], Any]:
    """The launching function and placeholder arguments of the right types.  Imports the DSL."""
    if isinstance(config, PreDispatchConfig):
        from . import pre_dispatch

        return pre_dispatch.entry(config)
    return mega_moe.entry(config)
