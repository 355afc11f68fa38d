"""Trying a catalogue of faults: each in the kernel that it is for, under several schedules, until something notices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from sm90_faults import Sm90Fault

from first_finding import assert_noticed
from sweep import rarely

SEEDS = range(3)  # schedules tried before a fault counts as unnoticed
HowNoticed = Callable[[Any, str, int], str | None]
"""Of a family: the first sign of a fault in one of its subjects under a schedule, as `kind: text`."""


def notice(how_noticed: HowNoticed, fault: Sm90Fault, subject: str) -> str | None:
    """The sign under the first schedule that shows the fault; None when none does."""
    return next((sign for seed in SEEDS if (sign := how_noticed(fault, subject, seed)) is not None), None)


def trials(
    cases: Iterable[tuple[Sm90Fault, str]], how_noticed: HowNoticed, arch_of: Callable[[str], str]
) -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """For the mutation score: architecture, name, and what tries the fault; `arch_of` says which architecture a subject is for."""
    for fault, subject in cases:
        yield arch_of(subject), f"{fault.name}, {subject}", partial(notice, how_noticed, fault, subject)


def assert_fault_is_noticed(how_noticed: HowNoticed, fault: Sm90Fault, subject: str) -> None:
    """By one of the signs that may show it."""
    assert_noticed(fault.signs, lambda: notice(how_noticed, fault, subject))


def assert_faults_are_different(faults: Collection[Sm90Fault], ptx: str) -> None:
    """Every fault finds its place and changes it, and no two make the same PTX."""
    made = {fault.apply(ptx) for fault in faults}
    assert len(made) == len(faults) > 0 and ptx not in made


def each_fault(cases: Sequence[tuple[Sm90Fault, str]], sample: Collection[tuple[Sm90Fault, str]]) -> pytest.MarkDecorator:
    """A test's parameters `fault` and `subject`; what is not in the sample of the suite is marked `faults`."""
    marked = [pytest.param(*one, marks=[] if one in sample else pytest.mark.faults) for one in cases]
    return pytest.mark.parametrize(("fault", "subject"), marked, ids=name_of)


def each_subject(subjects: Iterable[str], sample: Collection[tuple[Sm90Fault, str]]) -> list[Any]:
    """Parameters of a test of subjects; the suite has those that a fault of the sample runs anyway."""
    sampled = {subject for _, subject in sample}
    return [one if one in sampled else rarely(one) for one in subjects]


def name_of(value: object) -> str:
    """Of a parameter."""
    return value.name if isinstance(value, Sm90Fault) else str(value)
