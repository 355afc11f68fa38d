"""What pictures are drawn of: a configuration of either architecture, and a sampled routing for it."""

from __future__ import annotations

from random import Random

from ..config_error import ConfigError
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.sm100.config import Sm100Config


def require_sm100(config: MegaMoeConfig, picture: str, why: str) -> Sm100Config:
    """The configuration, if it is SM100's.  Raises `ConfigError` with the picture and why the other architecture has none."""
    if not isinstance(config, Sm100Config):
        raise ConfigError("arch", config.arch.name, f"sm_100a for a picture of {picture}: {why}")
    return config


def sample_counts(config: MegaMoeConfig, tokens: int, seed: int = 0) -> list[int]:
    """Tokens of each local expert, tokens * topk together, as many as a rank sends; the same for every call with a seed.

    A normal approximation of uniform routing: each expert's share of what the experts before it have left.  No expert has more tokens than
    there are on all ranks, for a token names it once.
    """
    problem, random = config.problem, Random(seed)
    left, most, counts = tokens * problem.topk, tokens * problem.num_ranks, list[int]()
    for experts in range(problem.experts_per_rank, 0, -1):
        mean = left / experts
        drawn = round(random.gauss(mean, (mean * (1 - 1 / experts)) ** 0.5))
        counts.append(min(max(drawn, 0, left - most * (experts - 1)), most, left))
        left -= counts[-1]
    return counts
