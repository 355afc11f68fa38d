"""Several processes that compile kernels into one store.

They are subprocesses that run this file as a module: `multiprocessing` would import the caller's main script again, which may be running.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ..kernels.kernel import KernelConfig
from .artifact import CompileError
from .store import ArtifactStore, describe_config, read_config

DONE = "stored"

log = logging.getLogger("megamoe_dsl")


def compile_into(
    folder: Path, configs: Sequence[KernelConfig], jobs: int, done: Callable[[KernelConfig], object] = lambda config: None
) -> None:
    """Compiles every configuration whose kernel the folder lacks, `jobs` at a time; calls `done` after each, from several threads.  Raises
    `CompileError`."""
    jobs, start = min(jobs, len(configs)), time.monotonic()
    log.info("compiling %d kernels in %d processes into %s", len(configs), max(1, jobs), folder)
    if jobs < 2 or not sys.executable:
        for config in configs:
            ArtifactStore(folder).get(config)
            done(config)
    else:
        feed_all(folder, configs, jobs, done)
    log.info("compiled %d kernels in %.1f s", len(configs), time.monotonic() - start)


def feed_all(folder: Path, configs: Sequence[KernelConfig], jobs: int, done: Callable[[KernelConfig], object]) -> None:
    """Hands all configurations to `jobs` processes."""
    waiting = iter(list(configs))  # threads may take from a list's iterator at once
    with ThreadPoolExecutor(jobs) as threads:
        try:
            for one in [threads.submit(feed, folder, waiting, done) for _ in range(jobs)]:
                one.result()
        except KeyboardInterrupt:
            deque(waiting, maxlen=0)  # every process ends after the kernel it is compiling
            raise


def feed(folder: Path, waiting: Iterator[KernelConfig], done: Callable[[KernelConfig], object]) -> None:
    """Hands waiting configurations to one process, one at a time.  A process group of its own keeps a terminal's interrupt from it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, process_group=0) as process:
        assert process.stdin is not None and process.stdout is not None
        for config in waiting:
            try:
                process.stdin.write(json.dumps(describe_config(config)) + "\n")
                process.stdin.flush()
            except BrokenPipeError:  # its end is seen below
                with suppress(BrokenPipeError):
                    process.stdin.close()  # else the rest would be written once more on the way out
            answer = process.stdout.readline().strip()
            if answer != DONE:
                process.kill()
                raise CompileError(answer or f"a compiling process ended with exit code {process.wait()}: {config}")
            done(config)
        process.stdin.close()


def main() -> None:
    """Compiles the configurations on stdin, one JSON object a line; answers each with one line until stdout is closed."""
    store, answers = ArtifactStore(sys.argv[1]), os.dup(1)
    os.dup2(2, 1)  # the DSL's output must not mix with answers
    for line in sys.stdin:
        try:
            store.get(read_config(json.loads(line)))
            answer = DONE
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".replace("\n", " ")
        try:
            os.write(answers, f"{answer}\n".encode())
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
