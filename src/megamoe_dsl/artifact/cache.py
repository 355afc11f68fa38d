"""Compiled kernels that outlive a process: one folder per user, in which every process looks before it compiles.

The folder is an `ArtifactStore`.  One that cannot be written, or that others may write, costs a warning and the time to compile, never an
error.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ..json_file import cache_folder
from ..kernels.kernel import KernelConfig
from ..problem import ProblemError
from .artifact import Artifact
from .store import ArtifactError, ArtifactStore, make_own_folder


def load_or_compile_all(configs: Sequence[KernelConfig], jobs: int | None = None) -> list[Artifact]:
    """Each kernel from the cache, or compiled and, where possible, stored there; missing ones are compiled in `jobs` processes, by default
    one per usable core.  Raises `CompileError`; `ArtifactError` when one is not there and no DSL is installed."""
    store = ArtifactStore(cache_folder())
    found = {config: artifact for config in configs if (artifact := load_one(store, config))}
    missing = [config for config in dict.fromkeys(configs) if config not in found]
    with ExitStack() as stack:
        if missing:
            from .workers import compile_into

            if why := store.why_unusable():
                store.warn_unusable(why)
                store = ArtifactStore(stack.enter_context(tempfile.TemporaryDirectory()))
            compile_into(store.folder, missing, jobs or len(os.sched_getaffinity(0)))
            found.update({config: store.get(config) for config in missing})
    return [found[config] for config in configs]


def load_one(store: ArtifactStore, config: KernelConfig) -> Artifact | None:
    try:
        return store.load(config)
    except ArtifactError:
        return None


def require_writable(field: str, folder: Path) -> None:
    """Makes the folder if need be.  Raises `ProblemError` where nothing can be written into it."""
    try:
        make_own_folder(folder)
    except OSError as error:
        raise ProblemError(field, str(folder), f"a folder that can be written ({error.strerror or error})") from None


def require_place(field: str, folder: Path) -> None:
    """As `require_writable`, for the part of the path that is there: makes no folder."""
    require_writable(field, next(one for one in (folder, *folder.absolute().parents) if one.exists()))
