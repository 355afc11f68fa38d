"""Configurations that may be the fastest at a point."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ...blocks.gemm.choose import NARROW, WIDE, cost, decoding_cost, decoding_tiles, unscaled
from ...blocks.gemm.config import NUM_SMS, GemmConfig
from ...config_error import ConfigError
from ...target import Target
from .point import GemmPoint

MOST = 8
REACH = 1.8  # a kernel whose estimate is longer by more is not timed

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"cluster": 2},
    {"cluster": 2, "dynamic_schedule": True},
    {"cluster": 2, "split_k": True},
    {"group_m": 4},
    {"cluster": 2, "group_m": 16},
)
"""What is tried with every tile."""


def estimate(point: GemmPoint, config: GemmConfig) -> float:
    """A rough time in clocks (blocks/gemm/choose.py)."""
    if point.problem.decodes:
        return decoding_cost(point.problem, point.rows / point.problem.num_groups, asdict(config), config.num_sms)
    return cost(point.problem, list(point.counts), asdict(config), config.num_sms)


def within_reach(point: GemmPoint, configs: list[GemmConfig]) -> list[GemmConfig]:
    """Without those that cannot be the fastest, by that time."""
    least = min((estimate(point, config) for config in configs), default=0.0)
    return [config for config in configs if estimate(point, config) <= REACH * least]


def candidates(point: GemmPoint, most: int = MOST) -> list[GemmConfig]:
    """The one that is chosen on the GPU that most people have, and the `most` that look fastest, each tile with all its variants counted as
    one."""
    chosen = GemmConfig.choose(point.problem, Target.typical(GemmConfig.arch), point.placed_rows)
    if point.problem.decodes:
        return list(dict.fromkeys([chosen, *decoding_candidates(point)]))
    found: list[list[GemmConfig]] = []
    for tile in (*NARROW, *WIDE) if point.problem.formats.scaled else map(unscaled, (*NARROW, *WIDE)):
        same = []
        for variant in VARIANTS:
            try:
                same.append(GemmConfig(point.problem, num_sms=NUM_SMS, **{**tile, **variant}))
            except ConfigError:
                continue
        if same:
            found.append(same)
    found.sort(key=lambda same: estimate(point, same[0]))
    return list(dict.fromkeys([chosen, *(config for same in found[:most] for config in same)]))


def decoding_candidates(point: GemmPoint) -> list[GemmConfig]:
    """Candidates for weights that are decoded: every tile for the point's rows of a group, in turn and, with groups, dealt."""
    expected = point.rows / point.problem.num_groups
    return [
        GemmConfig(point.problem, num_sms=NUM_SMS, **{**tile, "dynamic_schedule": dynamic_schedule})
        for tile in decoding_tiles(point.problem, expected)
        for dynamic_schedule in ((False, True) if point.problem.has_groups else (False,))
    ]
