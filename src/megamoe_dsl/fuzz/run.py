"""What `megamoe fuzz` does, on plain text streams: bench/fuzz.py does it where the command's libraries are missing.

Hypothesis is the fuzzer, with a clock: it draws trials until the time is over or one fails, which it shrinks.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st

from ..config_error import as_integer
from ..options.points import FuzzOptions
from ..problem import ProblemError
from ..runtime.symmetric_memory import device_arch
from .check import GpuMachine, SimulatedMachine, TrialMachine, check_trial
from .trial import MAKERS, ON_A_GPU, SIMULATED, Trial, trials

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


REPORT_SECONDS = 20.0
COMMAND = "megamoe fuzz"


def run_fuzz(given: FuzzOptions, say: Callable[[str], None]) -> bool:
    """Whether no trial failed; `say` is told a line now and then, and the command that repeats a failure.  Raises `ProblemError`."""
    if not 0 < given.minutes <= 10_000:
        raise ProblemError("minutes", given.minutes, "more than 0, and at most 10000")
    if as_integer(given.seed) is None or given.seed < 0:
        raise ProblemError("seed", given.seed, "0 or more")
    machine, arches = machine_of(given)
    if given.repeat is not None:
        trial = Trial.from_json(given.repeat)
        if trial.config.arch.name not in arches:
            raise ProblemError("repeat", trial.config.arch.name, f"a trial of {' or '.join(arches)}")
        wrong = check_trial(trial, machine)
        say(f"FAIL: {wrong}" if wrong else "PASS: one trial")
        return not wrong
    start = last = time.monotonic()

    def tell(count: int, trial: Trial) -> None:
        nonlocal last
        if time.monotonic() > last + REPORT_SECONDS:
            last = time.monotonic()
            say(f"{last - start:.0f} s, trial {count}: {trial.config.arch} {trial.config.problem.recipe}")

    search = Search(lambda trial: check_trial(trial, machine), tell)
    found = search.run(trials(ON_A_GPU if given.gpu else SIMULATED, arches), given.seed, 60 * given.minutes)
    say(verdict(search.count, time.monotonic() - start, found, gpu=given.gpu))
    return found is None


def machine_of(given: FuzzOptions) -> tuple[TrialMachine, tuple[str, ...]]:
    """Where trials run, and the architectures that it has.  Raises `ProblemError` for a host without a GPU that has a kernel."""
    if not given.gpu:
        return SimulatedMachine(), tuple(MAKERS)
    import torch

    if not torch.cuda.is_available():
        raise ProblemError("--gpu", True, "left out here: torch finds no GPU")
    return GpuMachine(given.artifacts, given.jobs), (device_arch(torch.device("cuda")).name,)


def verdict(count: int, seconds: float, found: FoundError | None, *, gpu: bool) -> str:
    """What is said at the end: how many trials passed, or the failure and the command that repeats it."""
    if found is None:
        return f"PASS: {count} trials in {seconds:.0f} s, none failed"
    command = f"{COMMAND}{' --gpu' if gpu else ''} --repeat {shlex.quote(found.trial.to_json())}"
    return f"FAIL after {count} trials: {found.wrong}\nto repeat it:\n{command}"
