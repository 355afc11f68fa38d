"""Errors the simulator raises."""

from __future__ import annotations


class SimError(Exception):
    """A kernel did something the PTX ISA does not allow, or trapped. The message says where."""


class Deadlock(SimError):
    """No warp can make progress: every one is blocked or polls a value that nobody changes."""
