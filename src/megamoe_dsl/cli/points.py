"""Options that name points to time: presets, tokens per rank, GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..presets import preset as find_preset
from ..problem import ProblemError

if TYPE_CHECKING:
    from ..bench.point import Point

POINTS, RUN = "Points", "Run"

PresetNames = Annotated[str, typer.Option("--preset", help="flash or pro, or both with a comma.", rich_help_panel=POINTS)]
TokenCounts = Annotated[str, typer.Option("--tokens", help="Tokens per rank, as in 8,64,512.", rich_help_panel=POINTS)]
RankCounts = Annotated[str, typer.Option("--ranks", help="GPUs, as in 8 or 2,4,8.", rich_help_panel=POINTS)]
ExpertsPerRank = Annotated[
    int | None, typer.Option(help="Instead of the preset's: 32 of flash on one rank are its share of eight.", rich_help_panel=POINTS)
]


def points_of(presets: str, tokens: str, ranks: str, experts_per_rank: int | None) -> list[Point]:
    """Every combination, as `Point`s whose problems are valid.  Raises `ProblemError`."""
    from ..bench.point import Point

    names, counts, groups = presets.split(","), numbers("tokens", tokens), numbers("ranks", ranks)
    for name in names:
        find_preset(name)
    points = [Point(name, count, group, experts_per_rank) for group in groups for name in names for count in counts]
    for point in points:
        point.problem.check_num_tokens(point.tokens, "tokens")
    return points


def numbers(field: str, text: str) -> list[int]:
    """8,64 as [8, 64].  Raises `ProblemError`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ProblemError(field, text, "numbers separated by commas") from None
