"""The error of a public call that was given no tensor where it takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from ..problem import ProblemError

P = ParamSpec("P")
R = TypeVar("R")


def takes_tensors(*names: str, optional: tuple[str, ...] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function raises `ProblemError` that names the argument if one of `names` is no tensor, or one of `optional` neither a tensor nor
    None.  Arguments are looked at only after Python's AttributeError or an operator's RuntimeError, so that a good call takes no longer."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (AttributeError, RuntimeError):
                given = inspect.signature(function).bind(*args, **kwargs).arguments
                for name in (*names, *optional):
                    value = given.get(name)
                    if not isinstance(value, torch.Tensor) and (name in names or value is not None):
                        raise ProblemError(name, value, "a tensor" if name in names else "a tensor or None") from None
                raise

        return call

    return decorate
