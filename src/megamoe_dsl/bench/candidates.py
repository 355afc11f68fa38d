"""What is worth compiling and timing at a point, around what is chosen there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import find_kernel
from ..problem import Problem
from ..target import Target
from .host import Host

TO_EITHER_SIDE = 2
T = TypeVar("T")


def candidates(problem: Problem, num_tokens: int, host: Host) -> list[MegaMoeConfig]:
    """For a GPU of `host`: the chosen configuration, the heuristics', and the neighbors of the chosen one."""
    kernel = find_kernel("mega_moe")
    chosen: MegaMoeConfig = kernel.choose(problem, host.target, num_tokens)
    heuristic: MegaMoeConfig = kernel.choose(problem, replace(host.target, gpu=None), num_tokens)
    return list(dict.fromkeys([chosen, heuristic, *neighbors(chosen, num_tokens, host.target)]))


def neighbors(config: MegaMoeConfig, num_tokens: int, target: Target) -> list[MegaMoeConfig]:
    """Configurations with one thing changed: two tiles to either side with their own lookahead, a quarter of the lead to four times, all
    experts, a ring with one stage less, and what the architecture alone has (`MegaMoeConfig.siblings`)."""
    kernel, problem, local = find_kernel("mega_moe"), config.problem, config.problem.experts_per_rank
    leads = [n for n in (config.lookahead // 4, config.lookahead // 2, 2 * config.lookahead, 4 * config.lookahead) if 1 <= n < local]
    found = [
        *(kernel.choose(problem, target, num_tokens, block_m=block_m) for block_m in around(config.tiles_of(problem), config.block_m)),
        *(config.replace(lookahead=lookahead) for lookahead in (*leads, local)),
        config.replace(num_stages=max(2, config.num_stages - 1)),
        *config.siblings,
    ]
    return [one for one in dict.fromkeys(found) if one != config]


def around(values: Sequence[T], middle: T) -> Sequence[T]:
    """Returns `middle` and up to two neighbors on either side of it."""
    place = values.index(middle)
    return values[max(0, place - TO_EITHER_SIDE) : place + TO_EITHER_SIDE + 1]
