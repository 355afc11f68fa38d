"""Results of checks that run in groups of processes: starting a group takes longer than most checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from megamoe_dsl.bench.process_group import RankWorker, run_jobs

Work = Callable[..., None]


class Outcomes:
    """Records of the checks that the selected tests of a module have as parameters `ranks` and `name`: those with equally many ranks run in
    one group, a process per rank, when the first of them is asked for."""

    def __init__(self, request: pytest.FixtureRequest, work: Work, limit_s: float, watchdog_s: float, **given: Any) -> None:
        self.work, self.limit_s, self.watchdog_s, self.given = work, limit_s, watchdog_s, given
        self.chosen: dict[int, list[str]] = {}
        self.records: dict[tuple[int, str], dict[str, Any]] = {}
        for item in request.session.items:
            parameters = getattr(getattr(item, "callspec", None), "params", {})
            if getattr(item, "module", None) is request.module and {"ranks", "name"} <= parameters.keys():
                self.chosen.setdefault(parameters["ranks"], []).append(parameters["name"])

    def get(self, ranks: int, name: str) -> dict[str, Any]:
        """What rank 0 reported; {"error": ...} where a rank failed or nothing came in time."""
        if (ranks, name) not in self.records:
            self._run(ranks)
        return self.records[ranks, name]

    def _run(self, ranks: int) -> None:
        def keep(name: str, record: dict[str, Any]) -> None:
            self.records[ranks, name] = record

        worker = RankWorker(partial(self.work, ranks=ranks, **self.given), ranks)
        run_jobs(worker, self.chosen[ranks], self.limit_s, keep, self.watchdog_s)
