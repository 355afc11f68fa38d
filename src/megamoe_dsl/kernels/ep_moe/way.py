"""Which way to compute an expert-parallel layer: in one launch, in two halves with an activation between them, or in a launch per stage."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from math import log

from ...config_error import require
from ...problem import Problem
from ...tuned import DEFAULT_GPU, EpEntry, tuned_layers
from .tuned_fields import expected_rows, share_of


class Way(StrEnum):
    """FUSED: `MegaMoE`; HALVES: `EpMoE`; UNFUSED: the stages of the layer, each a launch."""

    FUSED = "fused"
    HALVES = "halves"
    UNFUSED = "unfused"


def fastest_way(problem: Problem, num_tokens: int, *, among: Collection[Way] = tuple(Way), gpu: str = DEFAULT_GPU) -> Way:
    """Of these ways the one that took least at the measured point that is nearest, in the ratio of tokens of an expert: of the same shape,
    or else of any.  An activation of the caller's own leaves `HALVES` alone.

    Raises `ProblemError` for a number of tokens, `ConfigError` for no way at all, or for a GPU that nobody measured.
    """
    problem.check_num_tokens(num_tokens)
    require(len(among) > 0, "among", tuple(among), "at least one way")
    if len(among) == 1:
        return Way(next(iter(among)))
    entry = nearest_entry(problem, num_tokens, gpu)
    return min(map(Way, among), key=lambda way: entry.us[way])


def nearest_entry(problem: Problem, num_tokens: int, gpu: str) -> EpEntry:
    """Of the GPU's table.  Raises `ConfigError` where that has none."""
    table = tuned_layers(gpu)
    require(len(table.entries) > 0, "gpu", gpu, "one that was measured, such as " + DEFAULT_GPU)
    expected = expected_rows(problem, num_tokens)
    return min(table.by_share.get(share_of(problem), list(table.entries)), key=lambda one: abs(log(one.expected / expected)))
