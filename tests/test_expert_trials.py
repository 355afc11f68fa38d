"""What is tried before it is timed (bench/moe_layers/trials.py): others' failures are named and cost nothing else, ours are raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from moe_layers import trials
from moe_layers.other_way import OtherWay
from moe_layers.trials import Trials


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """Launches that were captured; `waits` cannot be."""
    seen: list[Callable[[], Any]] = []

    def graph_of(launch: Callable[[], Any]) -> None:
        if launch is waits:
            raise RuntimeError("waits for the host\nsomewhere")
        seen.append(launch)

    monkeypatch.setattr(trials, "graph_of", graph_of)
    return seen


def y() -> torch.Tensor:
    return torch.tensor(3.0)


def waits() -> torch.Tensor:
    return y()


def fails() -> Any:
    raise TypeError("no such argument")


def test_others_that_fail_are_named_and_the_rest_stays(captured: list[Callable[[], Any]]) -> None:
    tried = Trials(float)
    failing = {"made": OtherWay(fails), "run": OtherWay.of(fails), "held": OtherWay.of(waits, whole=True)}
    tried.others("theirs", lambda: {**failing, "part": OtherWay.of(y), "layer": OtherWay(lambda: y, whole=True)})
    assert tried.refused == {"made": "no such argument", "run": "no such argument", "held": "waits for the host"}
    assert tried.launches == {"part": y, "layer": y} and tried.errors == {"layer": 3.0} and captured == [y, y]


def test_a_library_without_ways_is_named(captured: list[Callable[[], Any]]) -> None:
    tried = Trials(float)

    def ways() -> dict[str, OtherWay]:
        raise ImportError

    tried.others("theirs", ways)
    assert tried.refused == {"theirs": "ImportError"} and not tried.launches and not captured


def test_ours_may_not_fail() -> None:
    tried = Trials(float)
    tried.own("part", y)
    tried.own("layer", y, whole=True)
    assert tried.launches == {"part": y, "layer": y} and tried.errors == {"layer": 3.0}
    with pytest.raises(TypeError, match="no such argument"):
        tried.own("fails", fails)
