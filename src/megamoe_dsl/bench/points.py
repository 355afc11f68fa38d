"""Points as command lines name them: presets, tokens per rank and ranks, each a list separated by commas."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ..cases.routing import check_remote
from ..presets import preset as find_preset
from ..problem import ProblemError
from .point import Point


def points_of(presets: str, tokens: str, ranks: str, experts_per_rank: int | None, remote: float | None) -> list[Point]:
    """Every combination, as `Point`s whose problems are valid.  Raises `ProblemError`."""
    names, counts, groups = presets.split(","), numbers("tokens", tokens), numbers("ranks", ranks)
    for name in names:
        find_preset(name)
    points = [Point(name, count, group, experts_per_rank, remote) for group in groups for name in names for count in counts]
    for point in points:
        point.problem.check_num_tokens(point.tokens, "tokens")
        check_remote(point.problem, remote)
    return points


def points_given(parser: ArgumentParser, given: Namespace, remote: float | None = None) -> list[Point]:
    """Those of the options preset, tokens, ranks and experts_per_rank, with this `remote`; exits with a message when they are none."""
    try:
        return points_of(given.preset, given.tokens, str(given.ranks), given.experts_per_rank, remote)
    except ProblemError as error:
        parser.error(str(error))


def numbers(field: str, text: str) -> list[int]:
    """8,64 as [8, 64].  Raises `ProblemError`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ProblemError(field, text, "numbers separated by commas") from None
