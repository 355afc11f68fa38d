"""Hypothesis is the fuzzer, with a clock: it draws trials until the time is over or one fails, which it shrinks.

Each process draws trials of its own; a trial that ends its process has failed, too.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st

from .check import check_trial, machine_of
from .options import FuzzOptions
from .trial import ON_A_GPU, SIMULATED, AnyTrial, expert_trials, trials

TRIALS_A_ROUND = 100
SEEDS_OF_A_PROCESS = 1 << 32
GRACE_S = 60.0
"""How long a trial may go on when the time is over: one that has not ended by then has failed."""
SHRINK_SECONDS = 120.0


class FoundError(Exception):
    """A trial that fails, and what is wrong."""

    def __init__(self, trial: AnyTrial, wrong: str) -> None:
        super().__init__(trial, wrong)
        self.trial, self.wrong = trial, wrong


def first_failure(
    trials: st.SearchStrategy[AnyTrial],
    check: Callable[[AnyTrial], str],
    tell: Callable[[AnyTrial], None],
    seed: int,
    seconds: float,
    most: int = 1 << 30,
    shrinks: Callable[[], bool] = lambda: True,
) -> FoundError | None:
    """The shrunk failure; None when the time is over, or after `most` trials, without one.

    check    says what is wrong with a trial; empty where nothing is
    tell     is told of every trial before it runs
    shrinks  whether other trials can run after one that failed
    """
    end, known, count, number = time.monotonic() + seconds, dict[AnyTrial, str](), 0, 0

    def over() -> bool:
        return time.monotonic() > end or (count >= most and not known)

    def attempt(trial: AnyTrial) -> None:
        nonlocal end, count
        if trial not in known:
            if over():
                return
            count += 1
            tell(trial)
            if not (wrong := check(trial)):
                return
            end = end if known else time.monotonic() + SHRINK_SECONDS
            end = end if shrinks() else 0
            known[trial] = wrong
        raise FoundError(trial, known[trial])

    while not over():
        quiet = settings(
            max_examples=min(TRIALS_A_ROUND, most),
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            print_blob=False,
        )
        try:
            hypothesis.seed(seed + number)(quiet(hypothesis.given(trials)(attempt)))()
        except FoundError as error:
            return error
        number += 1
    return None


@dataclass
class Searcher:
    """A process, the trial that it is at, its failure, as far as it is shrunk, and when it told the last."""

    process: SpawnProcess
    trial: AnyTrial | None = None
    found: FoundError | None = None
    since: float = 0.0

    def ending(self) -> FoundError | None:
        """What it has found at its end.  Raises `ChildProcessError` where it ended before its first trial."""
        self.process.join()
        if not (code := self.process.exitcode) or self.found:
            return self.found
        if self.trial is None:
            raise ChildProcessError(f"a process ended with exit code {code} before its first trial")
        return FoundError(self.trial, f"its process ended with exit code {code}")


def search_in_processes(
    given: FuzzOptions, arches: tuple[str, ...], tell: Callable[[AnyTrial], None], fails: Callable[[FoundError], None]
) -> list[FoundError]:
    """The failures, at most one of each process; `tell` is told of every trial, `fails` of each process' failure before it is shrunk."""
    searchers, found = dict[connection.Connection, Searcher](), list[FoundError]()
    end = time.monotonic() + 60 * given.minutes
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which processes inherit: they leave a terminal's interrupt to this one
        try:
            for number in range(given.jobs):
                reader, searcher = start(given, arches, number)
                searchers[reader] = searcher
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        while searchers:
            waiting = set(connection.wait(list(searchers), timeout=1))
            for reader, searcher in [(one, searchers[one]) for one in searchers if one in waiting]:
                try:
                    news = reader.recv()
                except EOFError:
                    del searchers[reader]
                    found += filter(None, [searcher.ending()])
                    continue
                searcher.since = time.monotonic()
                if not isinstance(news, FoundError):
                    searcher.trial = news
                    tell(news)
                else:
                    if searcher.found is None:
                        fails(news)
                    searcher.found = news
            for reader, searcher in list(searchers.items()):
                if searcher.trial and time.monotonic() > max(end, searcher.since) + GRACE_S:
                    del searchers[reader]
                    searcher.process.kill()
                    found.append(searcher.found or FoundError(searcher.trial, f"has not ended {GRACE_S:g} s after the time"))
    finally:
        for searcher in searchers.values():
            searcher.process.terminate()
    return found


def start(given: FuzzOptions, arches: tuple[str, ...], number: int) -> tuple[connection.Connection, Searcher]:
    """A process, and what it tells."""
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=search, args=(given, arches, number, writer), daemon=True)
    process.start()
    writer.close()
    return reader, Searcher(process)


def search(given: FuzzOptions, arches: tuple[str, ...], number: int, news: connection.Connection) -> None:
    """What a process does: tells every trial before it runs, and every one that fails."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // given.jobs))
    machine, _ = machine_of(given)

    def check(trial: AnyTrial) -> str:
        if wrong := check_trial(trial, machine):
            news.send(FoundError(trial, wrong))
        return wrong

    sizes = ON_A_GPU if given.gpu else SIMULATED
    ways = expert_trials(sizes, (given.way,)) if given.way else expert_trials(sizes)
    drawn = ways if given.way else st.one_of(trials(sizes, arches), trials(sizes, arches), ways)
    seed = given.seed + number * SEEDS_OF_A_PROCESS
    found = first_failure(drawn, check, news.send, seed, 60 * given.minutes, shrinks=machine.works)
    if found:
        news.send(found)
