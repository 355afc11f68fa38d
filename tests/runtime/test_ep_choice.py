"""The layer that `expert_parallel` makes: whose activation, and what was measured."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl.kernels.moe.halves import way as ways
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime.ep import choice
from megamoe_dsl.runtime.ep.choice import expert_parallel
from megamoe_dsl.tuned import DEFAULT_GPU, EpEntry, Table

MOE = Problem(512, 256, num_experts=8, topk=2, num_ranks=2, max_tokens_per_rank=64, recipe="fp8xfp8")
WEIGHTS: Any = SimpleNamespace(fc1=torch.empty(0))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with one measured point, where stages were fastest; layers say how they were made."""
    entry = EpEntry(512, 256, 4, 2, 64, {"fused": 3.0, "halves": 1.0, "unfused": 2.0}, "none")
    monkeypatch.setattr(ways, "tuned_layers", lambda gpu: Table(gpu, (entry,) if gpu == DEFAULT_GPU else (), EpEntry))
    monkeypatch.setattr(choice, "gpu_name", lambda device: DEFAULT_GPU)
    monkeypatch.setattr(choice, "MegaMoE", lambda problem, weights, **options: ("MegaMoE", options))
    monkeypatch.setattr(choice, "EpMoE", lambda problem, weights, **options: ("EpMoE", options))


def made(**arguments: Any) -> Any:
    return expert_parallel(MOE, WEIGHTS, **arguments)


def test_the_problems_activation_takes_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made() == ("MegaMoE", {"fused": False})
    assert made(way="fused", watchdog_ns=7) == ("MegaMoE", {"fused": True, "watchdog_ns": 7})
    monkeypatch.setattr(choice, "gpu_name", lambda device: "NVIDIA X")
    assert made() == ("MegaMoE", {"fused": True})


def test_the_callers_activation_takes_halves() -> None:
    for way in ("auto", "halves"):
        assert made(activation=torch.relu, way=way) == ("EpMoE", {"activation": torch.relu})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"way": "halves"}, "way = 'halves': must be auto or fused or unfused, with no activation"),
        ({"way": "fused", "activation": torch.relu}, "way = 'fused': must be auto or halves, with an activation"),
    ],
)
def test_a_way_that_does_not_go_with_the_activation_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        made(**arguments)


def test_formats_of_halves_alone_need_the_callers_activation() -> None:
    moe = replace(MOE, recipe="bf16xbf16")
    assert expert_parallel(moe, WEIGHTS, activation=torch.relu) == ("EpMoE", {"activation": torch.relu})
    with pytest.raises(ProblemError, match=r"activation = None: must be a function with bf16xbf16: only EpMoE has these number formats"):
        expert_parallel(moe, WEIGHTS)
