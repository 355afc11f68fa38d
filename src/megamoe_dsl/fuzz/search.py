"""Hypothesis as a fuzzer with a clock: draws trials until the time is over or one fails, which it shrinks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st

from .trial import Trial

TRIALS_A_ROUND = 100
SHRINK_SECONDS = 120.0


class FoundError(Exception):
    """A trial that fails, and what is wrong."""

    def __init__(self, trial: Trial, wrong: str) -> None:
        super().__init__(wrong)
        self.trial, self.wrong = trial, wrong


@dataclass
class Search:
    """Trials so far, and those that failed.

    check  says what is wrong with a trial; empty where nothing is
    tell   is told of every trial before it runs, and how many there were
    """

    check: Callable[[Trial], str]
    tell: Callable[[int, Trial], None]
    count: int = 0

    def run(self, trials: st.SearchStrategy[Trial], seed: int, seconds: float, most: int = 1 << 30) -> FoundError | None:
        """The shrunk failure; None when the time is over, or after `most` trials, without one."""
        end, known = time.monotonic() + seconds, dict[Trial, str]()

        def over() -> bool:
            return time.monotonic() > end or (self.count >= most and not known)

        def attempt(trial: Trial) -> None:
            nonlocal end
            if trial not in known:
                if over():
                    return
                self.count += 1
                self.tell(self.count, trial)
                if not (wrong := self.check(trial)):
                    return
                end = end if known else time.monotonic() + SHRINK_SECONDS
                known[trial] = wrong
            raise FoundError(trial, known[trial])

        number = 0
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
