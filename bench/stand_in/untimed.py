"""Benchmarks on a simulated GPU do everything once that they do often to take a time, and every time is NaN, those of stamps too: the
simulator's clock counts instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

NAN = float("nan")


def install() -> None:
    """Put it in place, for the rest of the process."""
    from megamoe_dsl.bench import point, session, timing
    from megamoe_dsl.inspect import spans

    spans_of = spans.spans_of
    ran: set[Callable[[], None]] = set()

    def measure(run: Callable[[], None], launches: int) -> float:
        if run not in ran:
            ran.add(run)
            run()
        return NAN

    def spans_without_times(stamps: Any) -> Iterator[Any]:
        return (replace(one, start=NAN, end=NAN) for one in spans_of(stamps))

    timing.measure = measure
    timing.GRAPH_LAUNCHES = 1
    point.launches_of = lambda tokens: 1
    for module in (spans, session):
        module.spans_of = spans_without_times
        module.write_perfetto = lambda path, spans: None
