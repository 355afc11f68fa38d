"""Runs of the SM90 kernel for tests.  y is held to the bits of the reference with Hopper's tensor core, for exact and for random data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from mega_moe_runs import Layer

from megamoe_dsl import Target, choose
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.reference import Accumulate, MoeResult
from ptx_of import artifact


@dataclass(frozen=True)
class HopperCase(Case):
    """A case whose reference has the tensor core's partial sums; nothing is left to a bound: the simulator's approximations are the
    reference's."""

    def reference(self, accumulate: Accumulate = "hopper") -> MoeResult:
        return super().reference(accumulate)

    def bound(self) -> list[torch.Tensor]:
        return [torch.zeros(x.shape, dtype=torch.float64) for x in self.x]


def hopper_case(problem: Problem, tokens: Sequence[int], seed: int, **data: Any) -> HopperCase:
    """As `cases.random_case`.  For exact data the reference is the one with exact sums too."""
    case = random_case(problem, tokens, seed, **data)
    return HopperCase(**{field.name: getattr(case, field.name) for field in fields(Case)})


def problem(tokens: int = 24, **changes: Any) -> Problem:
    """A tiny layer over two ranks for up to `tokens` tokens each; `changes` replace fields."""
    given = {"hidden": 256, "intermediate": 128, "num_experts": 8, "topk": 2, "num_ranks": 2, "max_tokens_per_rank": tokens}
    return Problem(**{**given, "recipe": "fp8xfp8", **changes})


def config(moe: Problem, num_sms: int = 4, **overrides: Any) -> Sm90Config:
    return choose(moe, Target.typical("sm_90a", num_sms), moe.max_tokens_per_rank, **overrides)


def prove(kernel: Sm90Config, launches: Iterable[Sequence[int]], seed: int = 0, **data: Any) -> Layer:
    """Launches with these token counts, one after another on the same buffers, each with its own data, weights and schedule.

    Race detector on, NaN in everything that a launch may not depend on, a clean workspace after each (`Layer.check`).
    """
    layer: Layer | None = None
    for number, tokens in enumerate(launches):
        case = hopper_case(kernel.problem, tokens, seed + number, **data)
        layer = layer or Layer.of(artifact(kernel), case)
        ranks = layer.check(case, seed + number)
        assert [one.unequal for one in ranks] == [0] * len(ranks)
    assert layer is not None
    return layer
