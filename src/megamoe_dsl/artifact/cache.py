"""Kernels that are compiled in parallel before they are asked for: into a folder per user, in which every process looks before it compiles,
or into another one.
"""

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
    """Compiles what the store lacks of these kernels, in `jobs` processes, by default one per usable core; how many that were.

    store  by default the cache; `field` is what an error calls its folder

    A terminal shows a progress bar, anything else gets a line per kernel on stderr.  Raises `CompileError`, `ArtifactError` when a kernel
    is missing and no DSL is installed, and `ProblemError` when the folder cannot be written.
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
    """What is called with every kernel that is done, of `count`."""
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
    """Makes the folder if need be.  Raises `ProblemError` where nothing can be written into it."""
    try:
        make_own_folder(folder)
    except OSError as error:
        raise ProblemError(field, str(folder), f"a folder that can be written ({error.strerror or error})") from None


def require_place(field: str, folder: Path) -> None:
    """As `require_writable`, for the part of the path that is there: makes no folder."""
    require_writable(field, next(one for one in (folder, *folder.absolute().parents) if one.exists()))
