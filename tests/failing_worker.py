"""A worker of a process group whose jobs fail or hang."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def end_after(rank: int, ending: int) -> bool:
    """Whether this rank is the one that ends; it has heard from the other one, which so is not in the middle of joining the group."""
    if rank == ending:
        dist.recv(torch.zeros(1), 1 - ending)
    else:
        dist.send(torch.zeros(1), ending)
    return rank == ending


def work(rank: int, jobs: list[Any], report: Callable[[int, dict[str, Any]], None]) -> None:
    """A number is done at once, "die" and "exit" end one rank, "hang" none; for "wait" rank 1 waits for rank 0,
    which has gone, and says so later."""
    for index, job in enumerate(jobs):
        if job == "die" and end_after(rank, 1):
            raise ValueError("broken")
        if job == "exit" and end_after(rank, 0):
            os._exit(3)
        if job == "wait":
            if end_after(rank, 0):
                os._exit(3)
            time.sleep(0.3)
            raise TimeoutError("waited")
        while job in ("die", "exit", "hang"):
            time.sleep(0.05)
        report(index, {"value": job})
