"""A kernel whose wait exceeded its limit leaves a record and traps; here the trap becomes an error that says who waited for what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class WatchdogError(RuntimeError):
    """A wait on global memory exceeded its limit; the message says whose and where."""


class HasRecord(Protocol):
    """Anything whose record a kernel may have written."""

    def watchdog_message(self) -> str | None: ...


@contextmanager
def naming_the_wait(*owners: HasRecord) -> Iterator[None]:
    """Turns an error inside into `WatchdogError` when a record of `owners` explains it; other errors pass."""
    try:
        yield
    except Exception as error:
        messages = [message for owner in owners if (message := owner.watchdog_message())]
        if not messages:
            raise
        raise WatchdogError("; ".join(messages)) from error
