"""What is worth compiling and timing at a point, around what is chosen there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import find_kernel
from ..problem import Problem
from .host import Host

TO_EITHER_SIDE = 2
T = TypeVar("T")


def candidates(problem: Problem, num_tokens: int, host: Host) -> list[MegaMoeConfig]:
    """For a GPU of `host`: the chosen configuration and the heuristics'; then one thing changed at a time: two tiles to either
    side with their own lookahead, a quarter of the lead to four times, all experts, a ring with one stage less, and what the architecture
    alone has (`MegaMoeConfig.siblings`)."""
    kernel = find_kernel("mega_moe")
    chosen: MegaMoeConfig = kernel.choose(problem, host.target, num_tokens)
    local = problem.experts_per_rank
    leads = [
        *(n for n in (chosen.lookahead // 4, chosen.lookahead // 2, 2 * chosen.lookahead, 4 * chosen.lookahead) if 1 <= n < local),
        local,
    ]
    found = [
        chosen,
        kernel.choose(problem, replace(host.target, gpu=None), num_tokens),
        *(kernel.choose(problem, host.target, num_tokens, block_m=block_m) for block_m in around(chosen.tiles_of(problem), chosen.block_m)),
        *(chosen.replace(lookahead=lookahead) for lookahead in leads),
        chosen.replace(num_stages=max(2, chosen.num_stages - 1)),
        *chosen.siblings,
    ]
    return list(dict.fromkeys(found))


def around(values: Sequence[T], middle: T) -> Sequence[T]:
    """Returns `middle` and up to two neighbors on either side of it."""
    place = values.index(middle)
    return values[max(0, place - TO_EITHER_SIDE) : place + TO_EITHER_SIDE + 1]
