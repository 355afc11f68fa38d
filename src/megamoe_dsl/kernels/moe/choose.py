"""Which configuration of the fused layer: what was measured on the GPU near this point, if anything was, else what heuristics say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...config_error import require, require_integer
from ...problem import Problem
from ...target import Target
from ...tuned import Entry, tuned_table
from .config import MegaMoeConfig
from .sm90.choose import choose_fields as choose_sm90
from .sm90.config import Sm90Config
from .sm100.choose import choose_fields as choose_sm100
from .sm100.config import Sm100Config

HEURISTICS: Mapping[Any, Any] = {Sm90Config: choose_sm90, Sm100Config: choose_sm100}
"""By class of the configuration: a function of (problem, expected tokens per expert, block_m or None, SMs) to fields."""


def choose(kind: Any, problem: Problem, target: Target, num_tokens: int, fields: Mapping[str, Any]) -> MegaMoeConfig:
    """The configuration for `num_tokens` tokens on every rank; `fields` replace what is chosen, and with a `block_m` among them nothing
    measured is taken.  Raises `ConfigError`.

    A measured point is near within a factor of two of the tokens per expert, if the heuristics choose the same there as here.  So a
    measurement replaces their choice only in the case that was measured: a tile of 8 tokens that was best for 5 is not used for 9."""
    problem.check_num_tokens(num_tokens)
    num_sms, gpu, block_m, heuristics = target.num_sms, target.gpu, fields.get("block_m"), HEURISTICS[kind]
    require_integer("num_sms", num_sms)
    require(gpu is None or isinstance(gpu, str), "gpu", gpu, "None or the name of a GPU")
    kind.require_recipe(problem)
    expected = problem.expected_tokens_per_expert(num_tokens)
    require(block_m in (None, *kind.tiles_of(problem)), "block_m", block_m, f"one of {list(kind.tiles_of(problem))}")
    chosen = heuristics(problem, expected, block_m, num_sms)
    if gpu is not None and block_m is None:
        for entry in tuned_table(gpu).near(Entry.share_of(problem, num_sms=num_sms), expected):
            if heuristics(problem, entry.expected, None, num_sms) == chosen:
                found = measured(kind, problem, entry)
                return found.replace(**fields) if fields else found
    return kind(problem, num_sms=num_sms, **{**chosen, **fields}) if fields else made(kind, problem, num_sms=num_sms, **chosen)


def measured(kind: Any, problem: Problem, entry: Entry, pool_rows: int | None = None) -> MegaMoeConfig:
    """The configuration of a measured point.  If its ring does not fit here, because with another number of ranks the tables of experts
    take more SMEM, the deepest ring that fits."""
    fields, stages = {**entry.choice, "num_sms": entry.num_sms, "pool_rows": pool_rows}, entry.choice["num_stages"]
    deepest = made(kind, problem, **{**fields, "num_stages": 0})
    return made(kind, problem, **fields) if 0 < stages < deepest.num_stages else deepest


@lru_cache(maxsize=1024)
def made(kind: Any, problem: Problem, **fields: Any) -> MegaMoeConfig:
    """A configuration of this class.  Many numbers of tokens choose the same one, and how deep its ring is takes milliseconds to find."""
    return kind(problem, **fields)
