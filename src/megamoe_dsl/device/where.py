"""Stores of some lanes: nothing is asked where a layout says that all of them have a place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute


def store_where(condition: Any, store: Callable[[], None]) -> None:
    """Calls `store` where the condition holds, without a question where it is Python's True."""
    if condition is True:
        store()
    else:
        _store_where(condition, store)


@cute.jit
def _store_where(condition: cutlass.Boolean, store: cutlass.Constexpr[Callable[[], None]]):
    if condition:
        store()
