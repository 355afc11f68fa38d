"""Errors the simulator raises."""

from __future__ import annotations

from numbers import Integral


class SimError(Exception):
    """A kernel did something the PTX ISA does not allow, or trapped. The message says where."""


class Deadlock(SimError):
    """No warp can make progress: every one is blocked or polls a value that nobody changes."""


def require_integer(name: str, value: object, least: int | None) -> None:
    """Raises SimError unless an argument is an integer, of at least `least` if that is one."""
    if not isinstance(value, Integral) or (least is not None and value < least):  # type: ignore[operator]
        raise SimError(f"{name} = {value!r}: must be an integer{'' if least is None else f' of {least} or more'}")
