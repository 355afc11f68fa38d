"""Compiles kernels in parallel in advance, into the user's cache or another store."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..kernels.kernel import KernelConfig
from ..problem import ProblemError
from .artifact import Artifact
from .store import ArtifactError, ArtifactStore, dsl_version, kernel_name, make_own_folder

Step = Callable[[KernelConfig], None]


def compile_ahead(
    configs: Iterable[KernelConfig], store: ArtifactStore | None = None, jobs: int | None = None, field: str = "store.folder"
) -> int:
    """Compiles kernels that the store (by default the cache) lacks, in `jobs` processes, by default one per usable core.  Returns how many.

    A terminal shows a progress bar; otherwise stderr gets a line per kernel.  Raises `CompileError`, `ArtifactError` when a kernel is
    missing and no DSL is installed, and `ProblemError`, which names the folder as `field`, when it cannot be written.
    """
    store = store or ArtifactStore()
    missing = [one for one in dict.fromkeys(configs) if load_one(store, one) is None]
    if not missing:
        return 0
    if dsl_version() is None:
        store.load(missing[0])  # says which kernel and which folder
    require_writable(field, store.folder)
    from .workers import compile_into

    with showing_progress(len(missing)) as step:
        compile_into(store.folder, missing, len(os.sched_getaffinity(0)) if jobs is None else jobs, step)
    return len(missing)


@contextmanager
def showing_progress(count: int) -> Iterator[Step]:
    """Gives a function to call after each of `count` kernels."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("compiling kernels"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=count)
            yield lambda config: bar.advance(task)
        return
    start, numbers = time.monotonic(), itertools.count(1)

    def say(config: KernelConfig) -> None:
        print(f"compiled {next(numbers)} of {count}, {time.monotonic() - start:.0f} s: {kernel_name(config)}", file=sys.stderr, flush=True)

    yield say


def load_one(store: ArtifactStore, config: KernelConfig) -> Artifact | None:
    try:
        return store.load(config)
    except ArtifactError:
        return None


def require_writable(field: str, folder: Path) -> None:
    """Makes the folder if need be.  Raises `ProblemError` unless it can be written."""
    try:
        make_own_folder(folder)
    except OSError as error:
        raise ProblemError(field, str(folder), f"a folder that can be written ({error.strerror or error})") from None


def require_place(field: str, folder: Path) -> None:
    """As `require_writable`, for the existing part of the path; makes no folder."""
    require_writable(field, next(one for one in (folder, *folder.absolute().parents) if one.exists()))
