"""Points of scripts: as their command lines name them, and in worker processes, some ranks after others."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.process_group import RankWorker, run_jobs
from megamoe_dsl.bench.results import Recorded
from megamoe_dsl.presets import PRESETS


def shares_of(text: str) -> list[Point]:
    """A type for argparse: PRESET:TOKENS, separated by commas, are one rank each with its share of the preset's experts."""
    pairs = [one.partition(":")[::2] for one in text.split(",")]
    if not all(name in PRESETS and tokens.isdecimal() and int(tokens) for name, tokens in pairs):
        raise ArgumentTypeError(f"{text!r}: must be PRESET:TOKENS, separated by commas, with presets among {', '.join(PRESETS)}")
    return [Point(name, int(tokens), 1, PRESETS[name].experts_per_rank) for name, tokens in pairs]


def record_points(
    work: Callable[[int, list[Point], Callable[[int, dict[str, Any]], None]], None],
    points: Sequence[Point],
    out: Path,
    kind: str,
    text_of: Callable[[dict[str, Any]], str],
    limit_s: float,
    watchdog_s: float,
    *sites: Path | str | None,
) -> list[dict[str, Any]]:
    """`run_jobs` of points, those of equal ranks together, each time in so many processes; returns the records.

    Each is printed, with `text_of` where its point did not fail, and written: the results file is there after every point."""
    found = Recorded(out, kind, *sites)
    for ranks in dict.fromkeys(point.ranks for point in points):
        some = [point for point in points if point.ranks == ranks]
        run_jobs(RankWorker(work, ranks), some, limit_s, lambda point, one: found.save(point.name, one, text_of), watchdog_s)
    return list(found.done().records)
