"""Checks on GPUs run in groups of processes (tests/gpu/outcomes.py); here without CUDA."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from outcomes import Outcomes


def work(rank: int, jobs: list[str], report: Callable[[int, dict[str, Any]], None], *, ranks: int, word: str) -> None:
    """Says who was asked for what; fails for "bad"."""
    for index, name in enumerate(jobs):
        if name == "bad":
            raise ValueError(word)
        report(index, {"said": f"{word} {name} {ranks} {len(jobs)}"})


def item(module: str, **parameters: Any) -> Any:
    return SimpleNamespace(module=module, callspec=SimpleNamespace(params=parameters))


@pytest.mark.usefixtures("cpu_group")
def test_selected_checks_of_a_module_run_together() -> None:
    mine = [item("mine", ranks=1, name=name) for name in ("first", "bad", "second")]
    others = [item("mine", ranks=2, name="first"), item("other", ranks=1, name="third"), item("mine", name="alone"), SimpleNamespace()]
    request = SimpleNamespace(module="mine", session=SimpleNamespace(items=[*mine, *others]))
    outcomes = Outcomes(request, work, 60.0, 0.5, word="did")
    assert outcomes.get(1, "second") == {"said": "did second 1 1"}  # in a new group, after the failure
    assert outcomes.get(1, "first") == {"said": "did first 1 3"}
    assert outcomes.get(1, "bad") == {"error": "rank 0: ValueError: did"}
    assert outcomes.records.keys() == {(1, "first"), (1, "bad"), (1, "second")}, "the group of two has not been asked for"
