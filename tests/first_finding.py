"""Simulations that end at the race detector's first finding: enough to know that a mutant shows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any
from unittest.mock import patch

from megamoe_dsl.sim import Finding
from megamoe_dsl.sim.race import Race


class RaceFound(BaseException):
    """Ends a run.  The simulator says of every `Exception` where it was, as of a fault of the kernel."""


class FirstFinding(dict[tuple[Any, ...], Finding]):
    """Findings of a detector of which the first one is enough."""

    def __setitem__(self, key: tuple[Any, ...], finding: Finding) -> None:
        raise RaceFound(str(finding))


def first_sign(notice: Callable[[], str | None]) -> str | None:
    """What `notice` says of its simulations, or `race: text` of the first finding in them, at which it is left."""
    with patch("megamoe_dsl.sim.simulator.Race", partial(Race, findings=FirstFinding())):
        try:
            return notice()
        except RaceFound as found:
            return f"race: {found}"


def assert_noticed(signs: Collection[str], notice: Callable[[], str | None]) -> None:
    """What `notice` says of its simulations is one of these kinds of signs; where a race is, they end at the first finding."""
    sign = first_sign(notice) if "race" in signs else notice()
    assert sign is not None and sign.split(":")[0] in signs, sign
