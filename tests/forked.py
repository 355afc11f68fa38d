"""Processes of tests that are forked from one that has imported torch and the DSL: for a short process that is most of its life."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

FORKED = get_context("forkserver")  # has one server for all of a process, and so has bench/public_programs.py
RECORD = "record.pt"
PRELOAD = ["pytest", "torch.distributed", "torch._dynamo", "cutlass.cute", "megamoe_dsl.sim", "megamoe_dsl.runtime.nodes"]


def forking(method: str = "") -> ForkServerContext:
    """In place of `multiprocessing.get_context`: processes are forked from one that has imported what takes long."""
    FORKED.set_forkserver_preload(PRELOAD)
    return FORKED


def forked_process(target: Callable[..., None], args: tuple[Any, ...]) -> ForkServerProcess:
    """A process, not yet started, with this one's present environment."""
    return forking().Process(target=_run, args=(dict(os.environ), target, args))


def recorded_by(run: Callable[[Path], None], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `run` has saved as `RECORD` in the folder, in a process of its own whose kernels lie there."""
    import torch

    monkeypatch.setenv("MEGAMOE_CACHE_DIR", str(folder))
    process = forked_process(run, (folder,))
    process.start()
    process.join()
    assert process.exitcode == 0
    return torch.load(folder / RECORD)


def _run(environment: dict[str, str], target: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*args)
