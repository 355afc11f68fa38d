"""A kernel whose wait exceeds its limit writes a record and traps; here the trap becomes an error that names the wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, SupportsIndex

import torch

from ..config_error import as_integer
from ..layouts.records import RECORD
from ..problem import ProblemError

GRACE_S = 5.0  # seconds from the first rank that gives up to the last
POLL_S = 0.05


class WatchdogError(RuntimeError):
    """A wait on global memory exceeded its limit; the message names rank, SM, phase and barrier, and ranks that did not report a wait."""


def new_record(device: torch.device) -> torch.Tensor:
    """An empty record, int32, for kernels on `device`: in host memory, which outlives a trapped kernel."""
    return torch.zeros(RECORD.size // 4, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")


def check_watchdog_ns(limit: SupportsIndex) -> int:
    """The limit as an int.  Raises `ProblemError` unless it is a positive number of 63 bits."""
    number = as_integer(limit)
    if number is None or not 0 < number < 1 << 63:
        raise ProblemError("watchdog_ns", limit, "a whole number of nanoseconds, from 1 to 2^63 - 1")
    return number


@contextmanager
def naming_the_wait(*owners: Any, who: Callable[[], str] = str) -> Iterator[None]:
    """Turns an error inside into `WatchdogError` when the record of one of `owners`, buffers of a rank, explains it; other errors pass.
    `who` gives the end of the message, about other ranks."""
    try:
        yield
    except Exception as error:
        messages = [message for owner in owners if (message := owner.watchdog_message())]
        if not messages:
            raise
        raise WatchdogError("; ".join(messages) + who()) from error


def silent_ranks(store: Any, name: str, rank: int, num_ranks: int, grace_s: float = GRACE_S) -> list[int] | None:
    """Reports in `store`, a torch.distributed store that all ranks share, that this rank has given up waiting.  Returns the ranks that have
    not reported the same within `grace_s` seconds; None when the store cannot be reached."""
    try:
        store.set(f"{name} {rank}", "waited")
        silent = [other for other in range(num_ranks) if other != rank]
        end = time.monotonic() + grace_s
        while silent and time.monotonic() < end:
            silent = [other for other in silent if not store.check([f"{name} {other}"])]
            time.sleep(POLL_S)
    except (RuntimeError, OSError):  # its host is gone
        return None
    return silent


def name_silent(silent: Sequence[int] | None, grace_s: float = GRACE_S) -> str:
    """The end of a message about them; empty when nothing is known."""
    if silent is None:
        return ""
    if not silent:
        return "; all ranks waited"
    return f"; rank {', '.join(map(str, silent))} did not report a wait within {grace_s:g} s"
