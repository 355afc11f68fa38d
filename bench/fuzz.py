"""Draws random layers, tokens and routings; compares them with the reference, another tile and the unfused layer.

python bench/fuzz.py --minutes 10                on simulated ranks of both architectures
python bench/fuzz.py --gpu --jobs 16             on this host's GPU; kernels are compiled on the spot

A failure is shrunk, and printed as the command that repeats it. Needs `megamoe_dsl[testing]`.
Exit code 0: no trial failed. 1: one did. 2: bad input.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from fuzzing.check import check_trial, machine_of
from fuzzing.options import WAYS, FuzzOptions
from fuzzing.search import FoundError, search_in_processes
from fuzzing.trial import AnyTrial, ExpertTrial, Trial, read_trial
from megamoe_dsl.problem import ProblemError
from script_options import add_options, read_options

REPORT_SECONDS = 20.0
COMMAND = "python bench/fuzz.py"
MOST_JOBS = 256


def run_fuzz(given: FuzzOptions, say: Callable[[str], None]) -> bool:
    """Whether no trial failed; `say` is told a line now and then, and the command that repeats a failure.  Raises `ProblemError`."""
    if not 0 < given.minutes <= 10_000:
        raise ProblemError("--minutes", given.minutes, "more than 0, and at most 10000")
    if given.seed < 0:
        raise ProblemError("--seed", given.seed, "0 or more")
    if not 0 < given.jobs <= MOST_JOBS:
        raise ProblemError("--jobs", given.jobs, f"1 to {MOST_JOBS}")
    if given.way not in (None, *WAYS):
        raise ProblemError("--way", given.way, f"one of {', '.join(WAYS)}")
    machine, arches = machine_of(given)
    if given.repeat is not None:
        trial = read_trial(given.repeat)
        if isinstance(trial, Trial) and trial.config.arch.name not in arches:
            raise ProblemError("--repeat", trial.config.arch.name, f"a trial of {' or '.join(arches)}")
        wrong = check_trial(trial, machine)
        say(f"FAIL: {wrong}" if wrong else "PASS: one trial")
        return not wrong
    start = last = time.monotonic()
    trials = Counter[str]()

    def tell(trial: AnyTrial) -> None:
        nonlocal last
        trials.update(kinds(trial))
        if time.monotonic() > last + REPORT_SECONDS:
            last = time.monotonic()
            say(f"{last - start:.0f} s: {listed(trials)}")

    found = search_in_processes(given, arches, tell, lambda failure: say(f"to be shrunk: {said(failure, given)}"))
    say(verdict(trials, time.monotonic() - start, found, given))
    return not found


ALL = "trials"


def kinds(trial: AnyTrial) -> list[str]:
    """What a trial counts as."""
    if isinstance(trial, ExpertTrial):
        return [ALL, f"moe {trial.problem.recipe}", *(f"moe {way}" for way in dict.fromkeys(trial.ways))]
    problem = trial.config.problem
    also = {"unfused": trial.unfused, "another tile": trial.other is not None, "ring": trial.config.pool_rows, "biases": problem.biases}
    return [ALL, f"{trial.config.arch} {problem.recipe}", *(name for name, is_so in also.items() if is_so)]


def listed(trials: Counter[str]) -> str:
    """`12 trials: 5 unfused, 12 sm_90a fp8xfp8`."""
    return f"{trials[ALL]} {ALL}: " + ", ".join(f"{trials[kind]} {kind}" for kind in sorted(trials) if kind != ALL)


def verdict(trials: Counter[str], seconds: float, found: Sequence[FoundError], given: FuzzOptions) -> str:
    """What is said at the end: how many trials passed, or the failures and the commands that repeat them."""
    ran = f"{seconds:.0f} s of {given.jobs} processes; {listed(trials)}"
    if not found:
        return f"PASS: none failed in {ran}"
    return "\n".join([f"{len(found)} failed in {ran}", *(said(one, given) for one in found)])


def said(failure: FoundError, given: FuzzOptions) -> str:
    """What is wrong, and the command that repeats it."""
    command = f"{COMMAND}{' --gpu' if given.gpu else ''} --repeat {shlex.quote(failure.trial.to_json())}"
    return f"FAIL: {failure.wrong}\nto repeat it:\n{command}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser.add_argument, FuzzOptions)
    try:
        return 0 if run_fuzz(read_options(FuzzOptions, parser.parse_args()), partial(print, flush=True)) else 1
    except ProblemError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
