"""What else could be chosen at a point, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial

from ..config_error import ConfigError
from ..kernels.moe.config import MegaMoeConfig

SHALLOWEST = 2


def choices(config: MegaMoeConfig, num_tokens: int) -> list[MegaMoeConfig]:
    """A configuration and those around it: every other tile, other leads of Linear1, a ring with one stage less, and with CTAs alone or in
    pairs, or another length of the epilogue's passes, where there is a choice."""
    return list(dict.fromkeys([config, *_around(config, num_tokens)]))


def _around(config: MegaMoeConfig, num_tokens: int) -> Iterator[MegaMoeConfig]:
    kind, local, names = type(config), config.problem.experts_per_rank, {one.name for one in fields(config)}
    for block_m in kind.tiles:
        yield from _possible(partial(kind.choose, config.problem, num_tokens, num_sms=config.num_sms, block_m=block_m))
    for lookahead in (config.lookahead // 4, config.lookahead // 2, 2 * config.lookahead, 4 * config.lookahead, local):
        if 1 <= lookahead <= local:
            yield config.replace(lookahead=lookahead)
    yield config.replace(num_stages=max(SHALLOWEST, config.num_stages - 1))
    for name, values in (("cluster", (1, 2)), ("store_block_m", (16, 32))):
        for value in values if name in names else ():
            yield from _possible(partial(config.replace, **{name: value}, num_stages=0))


def _possible(make: Callable[[], MegaMoeConfig]) -> Iterator[MegaMoeConfig]:
    """What can be made, if it can."""
    try:
        yield make()
    except ConfigError:
        return
