"""Counters of tiles: which launch has which."""

from __future__ import annotations

import pytest
import torch

from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.tile_counters import EACH, TileCounters


def test_a_launch_that_deals_early_has_another_counter_than_the_one_before(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    counters = TileCounters(torch.device("cpu"))
    first, second = counters.of(1, False), counters.of(2, False)
    assert second - first == 4 * EACH and first == counters.of(1, False) == counters.memory.data_ptr()
    assert [counters.early(first) for _ in range(3)] == [first + 4, first + 8, first + 4]
    assert [counters.early(one) for one in (second, first, second)] == [second + 4, first + 8, second + 8]
    assert counters.memory.shape[1] == EACH and not counters.memory.any()


def test_there_is_an_end_of_counters(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    counters = TileCounters(torch.device("cpu"), most=2)
    taken = [counters.of(stream, False) for stream in (1, 2, 1)]
    with pytest.raises(ProblemError, match="streams and captured graphs = 3: must be at most 2"):
        counters.of(3, False)
    assert taken[0] == taken[2] == taken[1] - 4 * EACH
