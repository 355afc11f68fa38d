"""Counters of tiles: which launch has which."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl.kernels.decode.config import ABSENT, LINE
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime import tile_counters
from megamoe_dsl.runtime.tile_counters import EACH, DecodeMemory, TileCounters


def test_a_launch_that_deals_early_has_another_counter_than_the_one_before(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    counters = TileCounters(torch.device("cpu"))
    first, second = counters.of(1, False), counters.of(2, False)
    assert second - first == 4 * EACH and first == counters.of(1, False) == counters.memory.data_ptr()
    assert [counters.early(first) for _ in range(3)] == [first + 4, first + 8, first + 4]
    assert [counters.early(one) for one in (second, first, second)] == [second + 4, first + 8, second + 8]
    assert counters.memory.shape[1] == EACH and not counters.memory.any()


@pytest.mark.parametrize("make", [TileCounters, partial(DecodeMemory, 4 * LINE)], ids=["counters", "memory"])
def test_what_may_run_at_once_shares_nothing(make: Callable[[torch.device], Any], monkeypatch) -> None:
    """Streams, and graphs: two that were captured on one stream may run beside it and beside each other."""
    captured = SimpleNamespace(number=0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(tile_counters, "driver", SimpleNamespace(cuStreamGetCaptureInfo=lambda stream: (None, None, captured.number, None)))
    owner, places = make(torch.device("cpu")), []
    for _ in range(2):
        for stream in (1, 2):
            for number in (0, 7, 8):
                captured.number = number
                places.append(owner.of(stream, number > 0))
    assert places[:6] == places[6:] and len(set(places)) == 6


@pytest.mark.parametrize(("make", "times"), [(TileCounters, 1), (partial(DecodeMemory, 4 * LINE), 2)], ids=["counters", "memory"])
def test_what_is_kept_is_in_no_pool_and_there_before_a_launch(make: Callable[[torch.device], Any], times: int, monkeypatch) -> None:
    """A thread of its own makes it on a stream of its own, for which the device is waited."""
    events, outside = list[object](), tile_counters.outside_pools
    monkeypatch.setattr(tile_counters, "outside_pools", lambda one: events.append("made") or outside(one))
    monkeypatch.setattr(torch.cuda, "synchronize", events.append)
    make(torch.device("cpu")).of(1, False)
    assert events == ["made", torch.device("cpu")] * times
    assert outside(threading.get_ident) != threading.get_ident()  # type: ignore[arg-type]


def test_memory_of_a_few_tokens_is_ready_before_a_capture(monkeypatch) -> None:
    """What is in it tells results from their absence; a capture that finds none made before makes its own, as a part of the graph."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    numbers = iter(range(1, 9))
    monkeypatch.setattr(tile_counters, "driver", SimpleNamespace(cuStreamGetCaptureInfo=lambda stream: (None, None, next(numbers), None)))
    owner, made = DecodeMemory(4 * LINE, torch.device("cpu")), []
    make = owner._make
    monkeypatch.setattr(owner, "_make", lambda: made.append(make()) or made[-1])
    owner.of(1, False)
    assert len(made) == 2  # its own, and a spare one
    owner.of(1, True)
    assert len(made) == 2
    owner.of(1, True)
    assert len(made) == 3
    for memory in made:
        assert not memory[: LINE // 4].any() and bool((memory[LINE // 4 :] == ABSENT).all()) and memory.numel() == LINE


def test_there_is_an_end_of_counters(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    counters = TileCounters(torch.device("cpu"), most=2)
    taken = [counters.of(stream, False) for stream in (1, 2, 1)]
    with pytest.raises(ProblemError, match="streams and captured graphs = 3: must be at most 2"):
        counters.of(3, False)
    assert taken[0] == taken[2] == taken[1] - 4 * EACH
