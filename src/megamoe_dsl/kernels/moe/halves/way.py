"""Which way to compute an expert-parallel layer: in one launch, in two halves with an activation between them, or in a launch per stage."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from math import log

from ....config_error import require
from ....problem import Problem
from ....tuned import DEFAULT_GPU, EpEntry, tuned_layers
from ..family import MegaMoeKernel
from .tuned_fields import expected_rows, share_of


class Way(StrEnum):
    """FUSED: `MegaMoE`; HALVES: `EpMoE`; UNFUSED: the stages of the layer, each a launch."""

    FUSED = "fused"
    HALVES = "halves"
    UNFUSED = "unfused"


def fastest_way(problem: Problem, num_tokens: int, *, among: Collection[Way] = tuple(Way), gpu: str = DEFAULT_GPU) -> Way:
    """Of these ways the one that took least at the measured point that is nearest, in the ratio of tokens of an expert: of the same shape,
    or else of any.  An activation of the caller's own, or number formats of halves alone, leave `HALVES`.

    Raises `ProblemError` for a number of tokens, `ConfigError` for no way at all, or for a GPU that nobody measured.
    """
    problem.check_num_tokens(num_tokens)
    fused = MegaMoeKernel.takes(problem.recipe)
    ways = [Way(one) for one in among if fused or one == Way.HALVES]
    require(len(ways) > 0, "among", tuple(among), "at least one way" if fused else f"{Way.HALVES} with {problem.recipe}")
    if len(ways) == 1:
        return ways[0]
    entry = nearest_entry(problem, num_tokens, gpu)
    return min(ways, key=lambda way: entry.us[way])


def nearest_entry(problem: Problem, num_tokens: int, gpu: str) -> EpEntry:
    """Of those of the GPU's table that have every way.  Raises `ConfigError` where there are none."""
    table = tuned_layers(gpu)
    entries = [one for one in table.by_share.get(share_of(problem), table.entries) if len(one.us) == len(Way)]
    require(len(entries) > 0, "gpu", gpu, "one that was measured, such as " + DEFAULT_GPU)
    expected = expected_rows(problem, num_tokens)
    return min(entries, key=lambda one: abs(log(one.expected / expected)))
