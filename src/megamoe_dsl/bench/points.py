"""Points as command lines name them: presets or a shape, tokens per rank and ranks, lists separated by commas."""

from __future__ import annotations

from ..cases.routing import check_remote
from ..options.option import numbers
from ..options.points import PointOptions
from ..presets import preset as find_preset
from ..problem import ProblemError
from ..recipe import BF16
from .point import SHAPE, Point


def points_of(given: PointOptions, remote: float | None = None, least_tokens: int = 0) -> list[Point]:
    """Every combination, as `Point`s whose problems are valid, with this `remote` and at least so many tokens.  Raises `ProblemError`."""
    counts, groups = numbers("tokens", given.tokens, least_tokens), numbers("ranks", given.ranks, 1)
    shape = {name: getattr(given, name) for name in SHAPE}
    if given.experts is not None and given.experts_per_rank is not None:
        raise ProblemError("experts_per_rank", given.experts_per_rank, "left out with --experts")
    names, combine = names_of(given, shape), given.combine or BF16
    points = [
        Point(name, count, group, given.experts_per_rank, remote, **shape, recipe=given.recipe, pool_rows=given.pool_rows, combine=combine)
        for group in groups
        for name in names
        for count in counts
    ]
    for point in points:
        if point.all_experts is not None and point.all_experts % point.ranks:
            raise ProblemError("ranks", point.ranks, f"a divisor of {point.all_experts}, the number of experts")
        check_remote(point.problem, remote)
    return points


def names_of(given: PointOptions, shape: dict[str, int | None]) -> list[str] | list[None]:
    """Presets; None alone for a shape that needs none.  Raises `ProblemError` for an unknown name and for a shape in parts."""
    if given.preset is None and any(value is not None for value in shape.values()):
        for name, value in shape.items():
            if value is None and (name != "experts" or given.experts_per_rank is None):
                raise ProblemError(name, None, "given, or taken from a --preset")
        return [None]
    names = (given.preset or given.DEFAULT_PRESETS).split(",")
    for name in names:
        find_preset(name)
    return names
