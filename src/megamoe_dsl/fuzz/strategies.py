"""Strategies of hypothesis for trials; a failing one shrinks in each field towards what `testing` says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from ..config_error import ConfigError
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import choose
from ..problem import Problem, ProblemError
from ..target import Target
from ..testing import configs_sm90, configs_sm100, problems
from .trial import ROUTINGS, VALUES, FuzzedCall, Trial

MAKERS = {"sm_90a": configs_sm90, "sm_100a": configs_sm100}
"""Strategies of configurations by architecture."""


@dataclass(frozen=True)
class Sizes:
    """The most of everything that a trial may have."""

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int
    ranks: int
    tokens: int
    sms: int
    calls: int


SIMULATED = Sizes(hidden=512, intermediate=256, experts_per_rank=4, topk=3, ranks=2, tokens=20, sms=4, calls=3)
ON_A_GPU = Sizes(hidden=2048, intermediate=1024, experts_per_rank=32, topk=8, ranks=1, tokens=600, sms=132, calls=8)


@st.composite
def layers(draw: st.DrawFn, sizes: Sizes, arch: str) -> MegaMoeConfig:
    """Configurations of layers of any shape, with biases or a ring or neither."""
    most = {"max_experts_per_rank": sizes.experts_per_rank, "max_topk": sizes.topk, "max_ranks": sizes.ranks, "max_tokens": sizes.tokens}
    whole = arch == "sm_100a" or draw(st.booleans())
    shape = problems(max_hidden=sizes.hidden, max_intermediate=sizes.intermediate, whole_tiles=whole, **most)
    try:
        rows = draw(st.sampled_from((None, 128, 256))) if arch == "sm_90a" else None
        problem = replace(draw(shape), pool_rows=rows, biases=draw(st.booleans()), weigh_results=draw(st.booleans()))
        return draw(MAKERS[arch](st.just(problem), max_sms=sizes.sms))
    except (ProblemError, ConfigError):
        reject()


def fields_of_calls(problem: Problem) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies of a call's fields, by name."""
    count = st.one_of(st.integers(0, problem.max_tokens_per_rank), st.just(problem.max_tokens_per_rank))
    return {
        "tokens": st.tuples(*[count] * problem.num_ranks),
        "routing": st.sampled_from(tuple(ROUTINGS)),
        "values": st.sampled_from(VALUES),
        "seed": st.integers(0, 999),
    }


@st.composite
def trials(draw: st.DrawFn, sizes: Sizes, arches: tuple[str, ...] = tuple(MAKERS)) -> Trial:
    """Shrinks to one call of no tokens, of SM90, without comparisons with another tile and with the unfused layer."""
    config = draw(layers(sizes, draw(st.sampled_from(arches))))
    named = fields_of_calls(config.problem)
    call, calls = draw(st.builds(FuzzedCall, **named)), []
    for field in draw(st.lists(st.sampled_from(tuple(named)), max_size=sizes.calls - 1)):
        if draw(st.booleans()):  # so that a call shrinks away of which only the next, which differs in one thing, matters
            calls.append(call)
        call = replace(call, **{field: draw(named[field])})
    calls.append(call)
    tile = draw(st.sampled_from((None, *type(config).tiles_of(config.problem))))
    try:
        other = None if tile is None else choose(config.problem, Target(config.arch, config.num_sms), 1, block_m=tile)
    except ConfigError:
        other = None
    return Trial(config, tuple(calls), other, draw(st.booleans()), draw(st.integers(0, 999)))
